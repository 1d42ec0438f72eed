//! From inputs to digests: feeds, captures, examples, and the commands of the README.

mod captures;
mod examples;
mod hosts;
mod readme;
mod runs;
mod whole;
