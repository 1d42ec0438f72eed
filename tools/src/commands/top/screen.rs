//! The screen of `tickcast top`: its keys, and its tables.

use std::cmp::Reverse;

use ratatui::Frame;
use ratatui::crossterm::event::KeyCode;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Style, Stylize};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Row, Table, TableState};
use tickcast_tools::support::plain::Plain;
use tickcast_tools::support::table::{span, thousands};

use super::latency::LatencyRow;
use super::model::{Model, Rows, SubscriberRow};
use super::status::Loss;
use super::status::{ReportedLatency, ReportedStage};

/// Rows of each table but that of the subscribers.
const ROWS_MAX: usize = 8;

/// The order of the subscribers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Order {
    #[default]
    Name,
    Lag,
    Lost,
    Rate,
}

impl Order {
    const fn next(self) -> Self {
        match self {
            Self::Name => Self::Lag,
            Self::Lag => Self::Lost,
            Self::Lost => Self::Rate,
            Self::Rate => Self::Name,
        }
    }

    const fn text(self) -> &'static str {
        match self {
            Self::Name => "name",
            Self::Lag => "lag",
            Self::Lost => "lost",
            Self::Rate => "rate",
        }
    }
}

/// Publisher, name and channel of a subscriber.
type SubscriberKey = (String, String, u16);

fn key_of(row: &SubscriberRow) -> SubscriberKey {
    (row.publisher.clone(), row.name.clone(), row.channel_id)
}

/// The state of the screen.
#[derive(Clone, Debug, Default)]
pub(crate) struct Screen {
    order: Order,
    filter: String,
    is_typing: bool,
    selected: Option<SubscriberKey>,
    /// Whether the losses of the selected subscriber are shown.
    is_open: bool,
}

impl Screen {
    /// Handles a key. Returns whether the command goes on.
    pub(crate) fn press(&mut self, key: KeyCode, rows: &Rows) -> bool {
        if self.is_typing {
            match key {
                KeyCode::Enter => self.is_typing = false,
                KeyCode::Esc => (self.is_typing, self.filter) = (false, String::new()),
                KeyCode::Backspace => drop(self.filter.pop()),
                KeyCode::Char(c) if !c.is_control() && self.filter.len() < 64 => {
                    self.filter.push(c);
                }
                _ => {}
            }
            return true;
        }
        match key {
            KeyCode::Char('q') => return false,
            KeyCode::Char('s') => self.order = self.order.next(),
            KeyCode::Char('/') => (self.is_typing, self.is_open) = (true, false),
            KeyCode::Esc if self.is_open => self.is_open = false,
            KeyCode::Esc => self.filter.clear(),
            KeyCode::Up => self.step(rows, -1),
            KeyCode::Down => self.step(rows, 1),
            KeyCode::Enter => {
                self.step(rows, 0);
                self.is_open = self.selected.is_some();
            }
            _ => {}
        }
        true
    }

    /// Moves the selection among the shown subscribers.
    fn step(&mut self, rows: &Rows, by: isize) {
        let shown = self.shown(rows);
        let at = self.selected_at(&shown);
        let to = match at {
            Some(at) => at.saturating_add_signed(by).min(shown.len().max(1) - 1),
            None => 0,
        };
        self.selected = shown.get(to).map(|row| key_of(row));
    }

    fn selected_at(&self, shown: &[&SubscriberRow]) -> Option<usize> {
        let selected = self.selected.as_ref()?;
        shown.iter().position(|row| key_of(row) == *selected)
    }

    /// Returns the subscribers that the filter leaves, in order.
    fn shown<'a>(&self, rows: &'a Rows) -> Vec<&'a SubscriberRow> {
        let wanted = self.filter.to_lowercase();
        let is_wanted = |row: &&SubscriberRow| {
            let texts = [&row.name, &row.channel, &row.publisher];
            texts.iter().any(|it| it.to_lowercase().contains(&wanted))
        };
        let mut shown: Vec<_> = rows.subscribers.iter().filter(is_wanted).collect();
        shown.sort_by(|a, b| a.name.cmp(&b.name));
        match self.order {
            Order::Name => {}
            Order::Lag => shown.sort_by_key(|it| Reverse(it.lag)),
            Order::Lost => shown.sort_by_key(|it| Reverse(it.lost_records)),
            Order::Rate => shown.sort_by(|a, b| {
                let rate = |it: &SubscriberRow| it.datagrams_per_s.unwrap_or(-1.0);
                rate(b).total_cmp(&rate(a))
            }),
        }
        shown
    }

    /// Draws all tables, or the losses of one subscriber.
    pub(crate) fn draw(
        &self,
        frame: &mut Frame<'_>,
        model: &Model,
        rows: &Rows,
        latencies: &[LatencyRow],
    ) {
        let [body, foot] =
            Layout::vertical([Constraint::Min(0), Constraint::Length(1)]).areas(frame.area());
        let shown = self.shown(rows);
        let selected = self.selected_at(&shown);
        match selected.filter(|_| self.is_open) {
            Some(at) => draw_losses(frame, body, shown[at]),
            None => self.draw_all(frame, body, model, rows, latencies, &shown),
        }
        frame.render_widget(self.foot(), foot);
    }

    fn foot(&self) -> Line<'static> {
        let keys = match (self.is_typing, self.is_open) {
            (true, _) => format!("filter: {}_  enter: keep  esc: clear", Plain(&self.filter)),
            (_, true) => "esc: back  q: quit".into(),
            _ => format!(
                "q: quit  s: sort ({})  /: filter{}  arrows, enter: losses",
                self.order.text(),
                match &self.filter[..] {
                    "" => String::new(),
                    filter => format!(" ({})", Plain(filter)),
                }
            ),
        };
        Line::from(keys).reversed()
    }

    fn draw_all(
        &self,
        frame: &mut Frame<'_>,
        area: Rect,
        model: &Model,
        rows: &Rows,
        latencies: &[LatencyRow],
        shown: &[&SubscriberRow],
    ) {
        let mut tables = vec![
            publishers(model, rows),
            channels(rows),
            lines(rows),
            sources(rows),
        ];
        if !latencies.is_empty() {
            tables.push(latency(latencies));
        }
        let heights = tables.iter().map(|it| Constraint::Length(it.height()));
        let areas = Layout::vertical(heights.chain([Constraint::Min(3)])).split(area);
        for (table, area) in tables.iter().zip(areas.iter()) {
            table.draw(frame, *area, None);
        }
        let last = areas[areas.len() - 1];
        let mut grid = subscribers(shown);
        grid.more = rows.publishers.iter().map(|it| it.reports_not_listed).sum();
        grid.draw(frame, last, self.selected_at(shown));
    }
}

/// A table of text.
struct Grid {
    headings: Vec<&'static str>,
    widths: Vec<u16>,
    rows: Vec<(Style, Vec<String>)>,
    /// Rows that are left out.
    more: usize,
}

impl Grid {
    fn new(columns: &[(&'static str, u16)]) -> Self {
        Self {
            headings: columns.iter().map(|(heading, _)| *heading).collect(),
            widths: columns.iter().map(|(_, width)| *width).collect(),
            rows: Vec::new(),
            more: 0,
        }
    }

    fn push(&mut self, is_bad: bool, cells: Vec<String>) {
        if self.rows.len() == ROWS_MAX {
            self.more += 1;
            return;
        }
        self.push_any(is_bad, cells);
    }

    fn push_any(&mut self, is_bad: bool, cells: Vec<String>) {
        let style = Style::new();
        let style = if is_bad { style.red() } else { style };
        self.rows.push((style, cells));
    }

    fn height(&self) -> u16 {
        self.rows.len() as u16 + 1 + u16::from(self.more > 0)
    }

    fn draw(&self, frame: &mut Frame<'_>, area: Rect, selected: Option<usize>) {
        let widths = self.widths.iter().map(|width| match width {
            0 => Constraint::Min(8),
            width => Constraint::Length(*width),
        });
        // The first column is text, and numbers stand to the right.
        let cell = |at: usize, text: String| match at {
            0 => Line::from(text),
            _ if self.widths[at] == 0 => Line::from(text),
            _ => Line::from(text).right_aligned(),
        };
        let head = self.headings.iter().enumerate();
        let head = Row::new(head.map(|(at, text)| cell(at, (*text).into())));
        let more = (self.more > 0).then(|| Row::new([format!("{} more", self.more)]));
        let rows = self.rows.iter().map(|(style, cells)| {
            let cells = cells.iter().enumerate();
            Row::new(cells.map(|(at, text)| cell(at, text.clone()))).style(*style)
        });
        let table = Table::new(rows.chain(more), widths)
            .header(head.bold().underlined())
            .row_highlight_style(Style::new().reversed());
        let mut state = TableState::new().with_selected(selected);
        frame.render_stateful_widget(table, area, &mut state);
    }
}

fn plain(text: &str) -> String {
    Plain(text).to_string()
}

fn per_second(rate: Option<f64>) -> String {
    rate.map_or_else(|| "-".into(), |rate| thousands(rate.round() as u64))
}

fn flag(is_set: bool, text: &str) -> String {
    if is_set { text.into() } else { String::new() }
}

/// Returns the values as bars, each relative to the largest.
fn sparkline(values: &[u64], width: usize) -> String {
    const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let kept = &values[values.len().saturating_sub(width)..];
    let max = kept.iter().copied().max().unwrap_or(0).max(1);
    let bar = |value: u64| BARS[(u128::from(value) * 7 / u128::from(max)) as usize];
    kept.iter().map(|value| bar(*value)).collect()
}

fn publishers(model: &Model, rows: &Rows) -> Grid {
    let mut grid = Grid::new(&[
        ("PUBLISHER", 22),
        ("NAME", 12),
        ("STATE", 11),
        ("RECORDS", 14),
        ("REC/S", 10),
        ("SUBS", 5),
        ("REPAIRS", 10),
        ("REFUSED", 9),
        ("LOST", 9),
        ("", 0),
    ]);
    for (row, (_, rates)) in rows.publishers.iter().zip(model.rates()) {
        let last = match &row.problem {
            Some(problem) => plain(problem),
            None => sparkline(&rates, 40),
        };
        let cells = vec![
            plain(&row.target),
            plain(row.name.as_deref().unwrap_or("-")),
            row.state.into(),
            thousands(row.records),
            per_second(row.records_per_s),
            thousands(row.subscribers as u64),
            thousands(row.repairs),
            thousands(row.refused),
            thousands(row.lost_records),
            last,
        ];
        grid.push(row.problem.is_some(), cells);
    }
    grid
}

fn channels(rows: &Rows) -> Grid {
    let mut grid = Grid::new(&[
        ("CHANNEL", 22),
        ("SEALED", 13),
        ("REC/S", 10),
        ("BYTES/S", 13),
        ("RING S", 7),
        ("NACKED", 10),
        ("PENDING", 8),
        ("REPAIR B/S", 11),
        ("NO BUDGET", 9),
        ("SKIPPED", 8),
    ]);
    for row in &rows.channels {
        let cells = vec![
            plain(&row.name),
            thousands(row.sealed),
            per_second(row.records_per_s),
            per_second(row.sealed_bytes_per_s),
            format!("{:.1}", row.ring_holds_s),
            thousands(row.nacked),
            thousands(row.pending),
            per_second(row.repair_bytes_per_s),
            thousands(row.refused_budget),
            thousands(row.skipped_datagrams),
        ];
        grid.push(row.skipped_datagrams > 0, cells);
    }
    grid
}

fn lines(rows: &Rows) -> Grid {
    let mut grid = Grid::new(&[
        ("LINE OUT", 22),
        ("DATAGRAMS", 13),
        ("DGR/S", 11),
        ("BYTES/S", 13),
        ("STALLS", 8),
        ("REFUSED", 9),
        ("ERRNO", 6),
    ]);
    for row in &rows.lines {
        let cells = vec![
            format!("{} {}", plain(&row.channel), row.line),
            thousands(row.datagrams),
            per_second(row.datagrams_per_s),
            per_second(row.sent_bytes_per_s),
            thousands(row.stalls),
            thousands(row.refused),
            row.last_errno.to_string(),
        ];
        grid.push(row.refused > 0, cells);
    }
    grid
}

fn sources(rows: &Rows) -> Grid {
    let mut grid = Grid::new(&[
        ("SOURCE", 12),
        ("MESSAGES", 15),
        ("MSG/S", 11),
        ("AGE", 10),
        ("", 7),
        ("GAPS", 8),
        ("MISSING", 10),
        ("OVERFLOW", 10),
        ("LINES: AGE, MISSING", 0),
    ]);
    for row in &rows.sources {
        let age =
            |us: Option<u64>| us.map_or_else(|| "-".into(), |us| span(us.saturating_mul(1_000)));
        let each = row.lines.iter().map(|line| {
            let stopped = if line.stopped > 0 { " stopped" } else { "" };
            format!("{} {}{stopped}", age(line.age_us), thousands(line.missing))
        });
        let cells = vec![
            row.source.to_string(),
            thousands(row.messages),
            per_second(row.messages_per_s),
            age(row.age_us),
            match (row.silent, row.ended) {
                (true, _) => "silent".into(),
                (_, ended) => flag(ended, "ended"),
            },
            thousands(row.gaps),
            thousands(row.missing_messages),
            thousands(row.overflow_messages),
            each.collect::<Vec<_>>().join(" | "),
        ];
        grid.push(row.silent || row.overflow_messages > 0, cells);
    }
    grid
}

fn latency(rows: &[LatencyRow]) -> Grid {
    let mut grid = Grid::new(&[
        ("LATENCY", 32),
        ("SAMPLES", 11),
        ("P50", 10),
        ("P99", 10),
        ("P99.9", 10),
        ("MAX", 10),
        ("P99 OVER TIME", 0),
    ]);
    for row in rows {
        let cells = vec![
            plain(&row.tag),
            thousands(row.samples),
            span(row.p50),
            span(row.p99),
            span(row.p999),
            span(row.max),
            sparkline(&row.p99_history, 40),
        ];
        grid.push(false, cells);
    }
    grid
}

fn subscribers(shown: &[&SubscriberRow]) -> Grid {
    let mut grid = Grid::new(&[
        ("SUBSCRIBER", 15),
        ("CHANNEL", 9),
        ("SEQUENCE", 13),
        ("DGR/S", 9),
        ("LAG", 9),
        ("LAG MS", 8),
        ("P99", 11),
        ("OPEN", 4),
        ("LOST", 11),
        ("", 7),
        ("PUBLISHER", 0),
    ]);
    for row in shown {
        let state = match (row.joined, row.follows) {
            (false, _) => "left",
            (_, false) => "joining",
            _ => "",
        };
        let cells = vec![
            plain(&row.name),
            plain(&row.channel),
            thousands(row.sequence),
            per_second(row.datagrams_per_s),
            thousands(row.lag),
            row.lag_ms
                .map_or_else(|| "-".into(), |ms| format!("{ms:.1}")),
            (row.latency.as_ref().and_then(ReportedLatency::delivered))
                .map_or_else(|| "-".into(), |it| marked(it.p99_ns, it)),
            row.open.to_string(),
            thousands(row.lost_records),
            state.into(),
            plain(&row.publisher),
        ];
        grid.push_any(row.lost_records > 0, cells);
    }
    grid
}

/// Returns a latency of this stage, with a mark if the clocks of the two hosts do not support it.
fn marked(ns: u64, of: &ReportedStage) -> String {
    let mark = if of.supported { "" } else { " ?" };
    format!("{}{mark}", span(ns))
}

/// Returns the latency that a subscriber reports, by stage.
fn stages(row: &SubscriberRow) -> Grid {
    let mut grid = Grid::new(&[
        ("STAGE", 28),
        ("SAMPLES", 11),
        ("P50", 12),
        ("P99", 12),
        ("P99.9", 12),
        ("MAX", 0),
    ]);
    for of in row.latency.iter().flat_map(|it| &it.stages) {
        let spans = [of.p50_ns, of.p99_ns, of.p999_ns, of.max_ns].map(|ns| marked(ns, of));
        let cells = [plain(&of.stage), thousands(of.samples)];
        grid.push(false, cells.into_iter().chain(spans).collect());
    }
    grid
}

/// Draws the latency and the losses of one subscriber.
fn draw_losses(frame: &mut Frame<'_>, area: Rect, row: &SubscriberRow) {
    let stages = stages(row);
    let [head, of_stages, body] = Layout::vertical([
        Constraint::Length(2),
        Constraint::Length(stages.height()),
        Constraint::Min(0),
    ])
    .areas(area);
    stages.draw(frame, of_stages, None);
    let title = format!(
        "{} on channel {} of {}: {} records lost; its last losses, newest first",
        plain(&row.name),
        plain(&row.channel),
        plain(&row.publisher),
        thousands(row.lost_records)
    );
    frame.render_widget(Span::from(title).bold(), head);
    let mut grid = Grid::new(&[
        ("WHEN (UTC)", 28),
        ("SEQUENCES", 25),
        ("REQUESTS", 8),
        ("TOOK", 10),
        ("RECORDS", 9),
        ("OUTCOME", 0),
    ]);
    for loss in row.losses.iter().rev() {
        grid.push_any(loss.outcome == "lost", loss_cells(loss));
    }
    grid.draw(frame, body, None);
}

fn loss_cells(loss: &Loss) -> Vec<String> {
    let unknown = || "-".to_owned();
    vec![
        loss.at(),
        format!("{}-{}", loss.first, loss.last),
        loss.requests.to_string(),
        loss.took_us
            .map_or_else(unknown, |us| span(us.saturating_mul(1_000))),
        loss.lost_records.map_or_else(unknown, thousands),
        format!("{}; {}", loss.fate(), loss.cause()),
    ]
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use serde_json::Value;

    use super::super::model::tests::polled;
    use super::super::status::tests::{loss, page};
    use super::*;

    fn watched(page_now: &Value) -> Model {
        let mut model = Model::new(&["a:7401".into(), "b:7401".into()]);
        let losses = [loss(40, "repaired"), loss(90, "lost")];
        model.take(0, Duration::from_secs(1), polled(&page(5, 1_000), &[]));
        model.take(0, Duration::from_secs(2), polled(page_now, &losses));
        model.take(1, Duration::from_secs(2), Err("connection refused".into()));
        model
    }

    fn drawn(screen: &Screen, model: &Model) -> String {
        drawn_at(140, screen, model)
    }

    fn drawn_at(width: u16, screen: &Screen, model: &Model) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, 30)).unwrap();
        let rows = model.rows();
        let latencies = [LatencyRow {
            log: "x.hlog".into(),
            tag: "equities/repair".into(),
            samples: 1_234,
            p50: 5_000,
            p99: 9_000,
            p999: 10_000,
            max: 11_000,
            p99_history: vec![1, 4, 8],
        }];
        let draw = |frame: &mut Frame<'_>| screen.draw(frame, model, &rows, &latencies);
        terminal.draw(draw).unwrap();
        terminal.backend().to_string()
    }

    fn line<'a>(screen: &'a str, with: &str) -> &'a str {
        let found = screen.lines().find(|line| line.contains(with));
        found.unwrap_or_else(|| panic!("no {with} in\n{screen}"))
    }

    fn holds(line: &str, numbers: &[&str]) {
        let words: Vec<&str> = line.trim_matches('"').split_whitespace().collect();
        for number in numbers {
            assert!(words.contains(number), "no {number} in {line}");
        }
    }

    #[test]
    fn numbers_on_screen_equal_the_status() {
        let model = watched(&page(5, 41_000));
        let screen = drawn(&Screen::default(), &model);
        holds(
            line(&screen, "a:7401"),
            &["p", "publishing", "41,000", "40,000", "1", "24", "6", "12"],
        );
        holds(
            line(&screen, "b:7401"),
            &["unreachable", "connection", "refused"],
        );
        let body = screen.split("LINE OUT").next().unwrap();
        holds(
            line(body, "equities"),
            &["4,100", "40,000", "2,000,000", "2.5", "30", "1"],
        );
        holds(
            line(&screen, "equities 0"),
            &["4,100", "4,000", "2", "3", "105"],
        );
        let source = line(&screen, "1.50 ms");
        holds(source, &["41,000", "2", "7"]);
        holds(
            line(&screen, "risk-1"),
            &["equities", "4,095", "5", "12", "0", "21.0", "?"],
        );
        let latency = line(&screen, "equities/repair");
        holds(latency, &["1,234", "5.0", "9.0", "10.0", "▁▄█"]);
    }

    #[test]
    fn keys_sort_filter_and_open_losses() {
        let mut many = page(5, 41_000);
        let one = many["subscribers"][0].clone();
        for (name, lag, lost) in [("slow", 900, 0), ("lossy", 1, 70)] {
            let mut other = one.clone();
            other["name"] = name.into();
            other["lag"] = lag.into();
            other["lost_records"] = lost.into();
            many["subscribers"].as_array_mut().unwrap().push(other);
        }
        let model = watched(&many);
        let rows = model.rows();
        let mut screen = Screen::default();
        let first = |screen: &Screen| screen.shown(&rows)[0].name.clone();
        assert_eq!(first(&screen), "lossy");
        let mut firsts = Vec::new();
        for _ in 0..4 {
            assert!(screen.press(KeyCode::Char('s'), &rows));
            firsts.push(first(&screen));
        }
        assert_eq!(firsts, ["slow", "lossy", "risk-1", "lossy"]);
        for key in "/risk".chars().map(KeyCode::Char).chain([KeyCode::Enter]) {
            screen.press(key, &rows);
        }
        assert_eq!(screen.shown(&rows).len(), 1);
        screen.press(KeyCode::Enter, &rows);
        let losses = drawn(&screen, &model);
        holds(
            line(&losses, "90-92"),
            &["2026-11-24T14:30:00.000000Z", "2", "1.25"],
        );
        let stage = line(&losses, "sealed_to_delivered");
        holds(stage, &["678", "3.0", "21.0", "34.0", "55.0", "?"]);
        let [newest, oldest] = ["90-92", "40-42"].map(|it| losses.find(it).unwrap());
        assert!(newest < oldest);
        screen.press(KeyCode::Esc, &rows);
        assert!(drawn(&screen, &model).contains("SUBSCRIBER"));
        screen.press(KeyCode::Esc, &rows);
        assert_eq!(screen.shown(&rows).len(), 3, "the filter is cleared");
        for _ in 0..9 {
            screen.press(KeyCode::Down, &rows);
        }
        assert_eq!(screen.selected_at(&screen.shown(&rows)), Some(2));
        screen.press(KeyCode::Up, &rows);
        assert_eq!(screen.selected_at(&screen.shown(&rows)), Some(1));
        assert!(!screen.press(KeyCode::Char('q'), &rows));
    }

    #[test]
    fn control_characters_of_names_are_escaped() {
        let mut hostile = page(5, 41_000);
        hostile["subscribers"][0]["name"] = "\u{1b}[2Jx\n".into();
        let screen = drawn(&Screen::default(), &watched(&hostile));
        assert!(screen.contains(r"\u{1b}[2Jx\n"), "{screen}");
    }

    #[test]
    fn tables_fit_into_120_columns() {
        let mut model = Model::new(&["127.0.0.1:7401".into()]);
        model.take(0, Duration::from_secs(1), polled(&page(5, 41_000), &[]));
        let rows = model.rows();
        let screen = drawn_at(120, &Screen::default(), &model);
        let grids = [
            publishers(&model, &rows),
            channels(&rows),
            lines(&rows),
            sources(&rows),
            latency(&[]),
            subscribers(&[]),
        ];
        for grid in grids {
            let head = line(&screen, &format!("\"{} ", grid.headings[0]));
            for heading in grid.headings {
                assert!(head.contains(heading), "no {heading} in {head}");
            }
        }
        assert!(
            line(&screen, "risk-1").contains("127.0.0.1:7401"),
            "{screen}"
        );
        // A number that is too long loses its first digits.
        let grid = subscribers(&[]);
        for (heading, longest) in [
            ("P99", "123.45 ms ?"),
            ("LOST", "999,999,999"),
            ("LAG", "9,999,999"),
        ] {
            let at = grid.headings.iter().position(|it| *it == heading);
            let width = at.map(|at| usize::from(grid.widths[at]));
            assert!(width >= Some(longest.len()), "{heading} has {width:?}");
        }
    }

    #[test]
    fn small_terminal_is_drawn_without_panic() {
        let model = watched(&page(5, 41_000));
        let rows = model.rows();
        for (width, height) in [(1, 1), (5, 3), (20, 6)] {
            let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
            let screen = Screen::default();
            let draw = |frame: &mut Frame<'_>| screen.draw(frame, &model, &rows, &[]);
            terminal.draw(draw).unwrap();
        }
    }
}
