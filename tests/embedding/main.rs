//! The libraries as a firm embeds them: from C, C++ and Rust.

mod c_abi;
mod risk_engine;
