//! Checks that the committed grid has a row for each cell. `make grid` compares the contents.

use tickcast_sim::grid::cells;

#[test]
fn committed_grid_has_all_rows() {
    let committed = include_str!("../golden/grid.md");
    let rows = committed.lines().filter(|line| line.starts_with("| "));
    assert_eq!(rows.count(), cells(usize::MAX).len() + 1);
}
