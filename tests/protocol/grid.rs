//! Checks that the committed grid has a row for each cell. `make grid` compares the contents.

use tickcast_sim::grid::cells;

#[test]
fn the_committed_grid_has_every_row() {
    let committed = include_str!("../golden/grid.md");
    let rows = committed.lines().filter(|line| line.starts_with("| "));
    assert_eq!(rows.count(), cells(usize::MAX).len() + 1);
}
