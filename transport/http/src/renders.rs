//! Renders of a page. Strangers decide how often a page is requested, so each is rendered at most ten times a
//! second, and all its readers share the bytes.

use std::collections::VecDeque;

use hyper::body::Bytes;
use tickcast_reliability::types::Nanos;

use crate::server::AnswerPage;

/// The last renders of one page.
#[derive(Debug, Default)]
pub struct Renders {
    newest: Option<(Nanos, AnswerPage)>,
    /// Bodies of earlier renders that are still being sent.
    sending: VecDeque<Bytes>,
}

impl Renders {
    /// Time for which a rendered page serves every request.
    pub const FRESH_FOR: Nanos = Nanos::from_ms(100);
    /// Maximum number of renders in memory.
    pub const MAX: usize = 4;

    /// Returns the page as of now or of [`Self::FRESH_FOR`] ago. While slow readers hold [`Self::MAX`]
    /// renders, returns the newest of them.
    pub fn get(
        &mut self,
        now: Nanos,
        render: impl FnOnce() -> Option<AnswerPage>,
    ) -> Option<AnswerPage> {
        self.sending.retain(|body| !body.is_unique());
        let is_due = match &self.newest {
            Some((at, _)) => {
                now.since(*at) >= Self::FRESH_FOR && self.sending.len() + 1 < Self::MAX
            }
            None => true,
        };
        if is_due {
            let before = std::mem::replace(&mut self.newest, render().map(|page| (now, page)));
            self.sending
                .extend(before.map(|(_, page)| page.body().clone()));
        }
        self.newest.as_ref().map(|(_, page)| page.clone())
    }
}

#[cfg(test)]
mod tests {
    use hyper::StatusCode;

    use super::*;

    fn render(renders: &mut Renders, ms: u64, rendered: &mut u32) -> AnswerPage {
        let page = renders.get(Nanos::from_ms(ms), || {
            *rendered += 1;
            Some(AnswerPage::text(StatusCode::OK, rendered.to_string()))
        });
        page.unwrap()
    }

    #[test]
    fn page_is_rendered_ten_times_a_second_for_any_requests() {
        let (mut renders, mut rendered) = (Renders::default(), 0);
        for ms in 0..1_000 {
            let page = render(&mut renders, 5_000 + ms, &mut rendered);
            assert_eq!(page.body(), (ms / 100 + 1).to_string().as_bytes());
        }
        assert_eq!(rendered, 10);
        assert!(renders.sending.len() <= 1, "no earlier one is kept");
    }

    #[test]
    fn slow_readers_hold_a_bounded_number_of_renders() {
        let (mut renders, mut rendered) = (Renders::default(), 0);
        let mut held: Vec<_> = (0..60)
            .map(|n| render(&mut renders, n * 100, &mut rendered))
            .collect();
        assert_eq!(rendered as usize, Renders::MAX);
        held.truncate(1);
        held.push(render(&mut renders, 6_000, &mut rendered));
        assert_eq!(rendered as usize, Renders::MAX + 1, "it goes on");
    }
}
