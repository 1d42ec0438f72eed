//! The subscriber for C, and through it for C++ and every language that calls C. A wrong call from there
//! causes an error code and no other harm.
//!
//! `subscriber/include/tickcast.h` is generated from this crate and describes the calls. The functions of
//! `tickcast-subscriber` that they use describe the meaning.
//!
//! - Every call is caught: a panic returns `PANICKED`, and its handle rejects further use.
//! - A handle is looked up, never followed ([`handle`]). A handle that was freed, is of another kind or
//!   is in use is an error.
//! - Sizes of structs are compared before anything is built, and in every call that fills one.
//! - The caller is trusted where a check is impossible: texts end, arrays have their stated length, and a
//!   struct to fill exists.
//!
//! Order of files, top to bottom; each imports only those below it:
//!
//! 1. `builder`: the description of a subscriber
//! 2. `abi`: the sizes of all structs
//! 3. `subscriber`: a subscriber that its own thread polls
//! 4. `reader`: threads of ours, and the readers of a split subscriber
//! 5. `monitor`: reports and histograms
//! 6. `directory`: symbols and ids
//! 7. `log`: log lines
//! 8. `item`: the argument of a callback
//! 9. `event`: events as plain structs
//! 10. `record`: records as plain structs
//! 11. `handle`: the table of handles
//! 12. `arguments`: texts, arrays and numbers from C
//! 13. `error`: codes and texts of failures

pub mod abi;
pub mod arguments;
pub mod builder;
pub mod directory;
pub mod error;
pub mod event;
pub mod handle;
pub mod item;
pub mod log;
pub mod monitor;
pub mod reader;
pub mod record;
pub mod subscriber;
