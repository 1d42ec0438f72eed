//! tickcast-subscriber
