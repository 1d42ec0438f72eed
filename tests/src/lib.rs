//! tickcast-tests
