//! tickcast
fn main() {}
