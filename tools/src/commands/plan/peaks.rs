//! The peaks of a load: the most that falls into any window of a length.

use std::collections::VecDeque;
use std::ops::{AddAssign, SubAssign};

use tickcast_reliability::types::Nanos;

/// A window is kept in about this many steps, so a peak is exact to one part in as many.
const STEPS: u64 = 1_024;

/// Counts of a part of the load.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub(super) struct Load {
    /// Packets of the recording, on all lines.
    pub packets: u64,
    /// Bytes of these packets above UDP.
    pub packet_bytes: u64,
    /// Venue messages.
    pub messages: u64,
    /// Records of these messages.
    pub records: u64,
    /// Datagrams that carry them.
    pub datagrams: u64,
    /// Bytes of these datagrams.
    pub datagram_bytes: u64,
}

impl Load {
    fn fields(&mut self) -> [&mut u64; 6] {
        [
            &mut self.packets,
            &mut self.packet_bytes,
            &mut self.messages,
            &mut self.records,
            &mut self.datagrams,
            &mut self.datagram_bytes,
        ]
    }

    /// Raises each count to that of `other`, if it is higher.
    fn raise_to(&mut self, mut other: Self) {
        let fields = self.fields().into_iter().zip(other.fields());
        fields.for_each(|(to, of)| *to = (*to).max(*of));
    }
}

impl AddAssign for Load {
    fn add_assign(&mut self, mut other: Self) {
        let fields = self.fields().into_iter().zip(other.fields());
        fields.for_each(|(to, of)| *to = to.saturating_add(*of));
    }
}

impl SubAssign for Load {
    fn sub_assign(&mut self, mut other: Self) {
        let fields = self.fields().into_iter().zip(other.fields());
        fields.for_each(|(to, of)| *to = to.saturating_sub(*of));
    }
}

/// The most of each count in any window of one length. It holds a bounded number of steps, however many
/// arrivals a window has.
#[derive(Debug)]
pub(super) struct Peak {
    length: Nanos,
    steps: VecDeque<(Nanos, Load)>,
    inside: Load,
    most: Load,
    /// The end of the window with the most datagrams.
    at: Nanos,
}

impl Peak {
    /// Returns the peak of no load, over windows of this length.
    pub(super) fn over(length: Nanos) -> Self {
        Self {
            length,
            steps: VecDeque::new(),
            inside: Load::default(),
            most: Load::default(),
            at: Nanos::ZERO,
        }
    }

    /// Adds an arrival. `at` never goes back.
    pub(super) fn add(&mut self, at: Nanos, load: Load) {
        while let Some((first, leaving)) = self.steps.front().copied() {
            if at.since(first) < self.length {
                break;
            }
            self.inside -= leaving;
            self.steps.pop_front();
        }
        let step = Nanos(self.length.0 / STEPS);
        match self.steps.back_mut() {
            Some((begun, last)) if at.since(*begun) <= step => *last += load,
            _ => self.steps.push_back((at, load)),
        }
        self.inside += load;
        if self.inside.datagrams > self.most.datagrams {
            self.at = at;
        }
        self.most.raise_to(self.inside);
    }

    /// Returns the most of each count. The counts need not have come from one window.
    pub(super) const fn most(&self) -> Load {
        self.most
    }

    /// Returns the end of the window with the most datagrams.
    pub(super) const fn at(&self) -> Nanos {
        self.at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(datagrams: u64) -> Load {
        Load {
            datagrams,
            ..Load::default()
        }
    }

    #[test]
    fn peak_equals_fullest_of_all_windows() {
        let arrivals = [
            (0, 1),
            (400, 2),
            (999, 4),
            (1_000, 8),
            (1_400, 1),
            (9_000, 3),
        ];
        let length = Nanos(1_000);
        let mut peak = Peak::over(length);
        for (at, datagrams) in arrivals {
            peak.add(Nanos(at), load(datagrams));
        }
        let in_window = |from: u64| -> u64 {
            let inside = arrivals
                .iter()
                .filter(|(at, _)| (from..from + 1_000).contains(at));
            inside.map(|(_, datagrams)| datagrams).sum()
        };
        let expected = arrivals.iter().map(|(at, _)| in_window(*at)).max();
        assert_eq!(Some(peak.most().datagrams), expected);
        assert_eq!((peak.most().datagrams, peak.at()), (14, Nanos(1_000)));
    }

    #[test]
    fn steps_are_bounded_and_peak_is_near_exact() {
        let mut peak = Peak::over(Nanos::from_ms(1));
        for n in 0..100_000_u64 {
            peak.add(Nanos(n * 10), load(1));
        }
        assert!(peak.steps.len() as u64 <= STEPS + 1, "{}", peak.steps.len());
        let (most, exact) = (peak.most().datagrams, 100_000);
        assert!(most.abs_diff(exact) <= exact / STEPS + 1, "{most}");
    }

    #[test]
    fn arrivals_at_one_time_are_one_step() {
        let mut peak = Peak::over(Nanos::from_us(100));
        for _ in 0..50_000 {
            peak.add(Nanos(7), load(1));
        }
        assert_eq!((peak.steps.len(), peak.most().datagrams), (1, 50_000));
    }

    #[test]
    fn counts_peak_each_on_its_own() {
        let mut peak = Peak::over(Nanos(10));
        let many_small = Load {
            messages: 90,
            datagrams: 1,
            ..Load::default()
        };
        peak.add(Nanos(0), many_small);
        peak.add(Nanos(100), load(5));
        assert_eq!((peak.most().messages, peak.most().datagrams), (90, 5));
    }
}
