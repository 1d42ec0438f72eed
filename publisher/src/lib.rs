//! tickcast-publisher
