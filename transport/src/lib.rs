//! tickcast-transport
