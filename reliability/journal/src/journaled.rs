//! A core with an optional journal of its inputs and outputs. Each side adds `handle`, which notes an
//! input and gives it to the core.

use std::fmt;
use std::ops::Deref;

use super::layout::Note;
use crate::outputs::Outputs;
use crate::writer::JournalWriter;
use tickcast_reliability::types::{Nanos, State};

/// A core with an optional journal. It dereferences to the core for everything that changes nothing.
pub struct Journaled<Core> {
    pub(crate) core: Core,
    pub(crate) journal: Option<Box<JournalWriter>>,
}

impl<Core: fmt::Debug> fmt::Debug for Journaled<Core> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.core.fmt(f)
    }
}

impl<Core> Deref for Journaled<Core> {
    type Target = Core;

    #[inline]
    fn deref(&self) -> &Core {
        &self.core
    }
}

impl<Core: State> Journaled<Core> {
    /// Returns this core without a journal.
    #[must_use]
    pub const fn new(core: Core) -> Self {
        Self {
            core,
            journal: None,
        }
    }

    /// Attaches a journal, which begins with the core's state.
    pub fn keep_journal(&mut self, journal: JournalWriter) {
        self.journal = Some(Box::new(journal));
    }

    /// Detaches the journal and returns it.
    pub const fn take_journal(&mut self) -> Option<Box<JournalWriter>> {
        self.journal.take()
    }

    /// Returns whether a journal is attached.
    #[must_use]
    #[inline]
    pub const fn is_journaled(&self) -> bool {
        self.journal.is_some()
    }

    /// Returns the attached journal.
    #[must_use]
    pub fn journal(&self) -> Option<&JournalWriter> {
        self.journal.as_deref()
    }

    /// Returns the outputs of the core since the journal was attached.
    #[must_use]
    pub fn outputs(&self) -> Option<&Outputs> {
        Some(self.journal()?.outputs())
    }

    /// Notes an event around the core.
    #[cold]
    pub fn note(&mut self, now: Nanos, note: Note) {
        if let Some(journal) = &mut self.journal {
            journal.note(&self.core, now, &note);
        }
    }
}
