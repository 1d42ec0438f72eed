//! Exchange feeds: captures and live packets in, normalised DBN records out.
pub mod source;
