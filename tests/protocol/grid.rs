//! The committed grid is what the code does, as far as a debug build can say soon; and its rules
//! hold for a thousand receivers too. The whole of it is compared by the binary `grid`.

use tickcast_sim::grid::{Cell, Loss, broken, cells, difference, measure, table, up_to};

#[test]
fn committed_grid_matches_code_to_hundred_receivers() {
    let rows = measure(&cells(100), &|_| ());
    assert_eq!(broken(&rows), Vec::<String>::new());
    let committed = include_str!("../golden/grid.md");
    if let Some(lines) = difference(&up_to(committed, 100), &table(&rows)) {
        panic!(
            "the grid differs; if that is meant:\ncargo run -p tickcast-sim --release --bin grid -- --write\n{lines}"
        );
    }
}

#[test]
fn thousand_with_common_loss_send_sixteen_nacks() {
    let of = |loss, receivers| Cell {
        loss,
        per_mille: 50,
        receivers,
        multicast: true,
    };
    let cells = [
        of(Loss::Common, 1_000),
        of(Loss::One, 1_000),
        of(Loss::One, 1),
    ];
    let rows = measure(&cells, &|_| ());
    assert_eq!(broken(&rows), Vec::<String>::new());
    for row in &rows {
        assert!(row.tally.repairs.sequences.len() > 10, "{:?}", row.cell);
    }
}

#[test]
fn the_committed_grid_has_every_row() {
    let committed = include_str!("../golden/grid.md");
    let rows = committed.lines().filter(|line| line.starts_with("| "));
    assert_eq!(rows.count(), cells(usize::MAX).len() + 1);
}
