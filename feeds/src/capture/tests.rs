use super::*;

#[test]
fn stats_name_skipped_frames_and_unread_parts() {
    let mut account = Account::default();
    for (n, reason) in (0..).zip(Reason::ALL) {
        account.add(*reason, 1 << n, 1 << (n + 10));
    }
    let stats = CaptureStats {
        frames: 1 << 40,
        truncated: 1,
        account,
        ..CaptureStats::default()
    };
    let of = |reason| account.of(reason);
    let returned = of(Reason::Datagram).frames + of(Reason::Snapped).frames;
    assert_eq!(stats.skipped(), (1 << 40) - returned);
    let unread = [
        Reason::Skipped,
        Reason::Malformed,
        Reason::Contradiction,
        Reason::Checksum,
        Reason::Trailing,
    ];
    let bytes: u64 = unread.map(|reason| of(reason).bytes).iter().sum();
    assert_eq!(stats.unread(), 1 + bytes);
}

#[test]
fn stats_of_several_files_are_their_sums() {
    let stats = |n: u64| {
        let mut account = Account::default();
        account.add(Reason::Datagram, n + 5, n + 6);
        CaptureStats {
            frames: n,
            datagrams: n + 1,
            snapped: n + 2,
            unstamped: n + 3,
            truncated: n + 4,
            account,
        }
    };
    let mut all = stats(10);
    all.merge(&stats(100));
    let mut account = Account::default();
    account.add(Reason::Datagram, 120, 122);
    let sums = CaptureStats {
        frames: 110,
        datagrams: 112,
        snapped: 114,
        unstamped: 116,
        truncated: 118,
        account,
    };
    assert_eq!(all, sums);
}
