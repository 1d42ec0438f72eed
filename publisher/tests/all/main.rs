//! The publisher as a process and as a library, from outside.

mod admin;
mod allocations;
mod browser;
mod captures;
mod common;
mod config;
mod files;
mod library;
mod lines;
mod page;
mod pins;
mod records;
mod reload;
mod service;
