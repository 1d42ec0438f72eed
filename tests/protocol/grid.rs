//! Checks that the committed grid has a row for each cell. `make grid` compares the contents.

use tickcast_sim::grid::{cells, difference, sample};

#[test]
fn committed_grid_has_all_rows() {
    let committed = include_str!("../golden/grid.md");
    let rows = committed.lines().filter(|line| line.starts_with("| "));
    assert_eq!(rows.count(), cells(usize::MAX).len() + 1);
}

#[test]
fn samples_of_four_days_have_every_row() {
    let samples: Vec<_> = (20_261_128..20_261_132).map(sample).collect();
    let all = cells(usize::MAX);
    assert!(
        all.iter()
            .all(|cell| samples.iter().any(|it| it.contains(cell)))
    );
    assert!(samples.iter().all(|it| it.len() < all.len()));
}

#[test]
fn difference_of_a_sample_shows_new_lines_only() {
    assert_eq!(difference("a\nb\n", "b\n", true), None);
    assert_eq!(difference("a\nb\n", "c\n", true).unwrap(), "+ c\n");
    assert_eq!(difference("a\nb\n", "b\n", false).unwrap(), "- a\n");
}
