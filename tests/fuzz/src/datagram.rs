//! Any bytes as a datagram. Reading gives the written values to the byte, and stays in bounds
//! (docs/PROTOCOL.md §3 and §4).

use tickcast_reliability::record::{AlignedCopy, RecordBatch};
use tickcast_reliability::wire::{
    CrcVerdict, Datagram, HEADER_LEN, Heartbeat, Kind, RELAY_OFFSET, StreamEvent, crc_of,
};

/// Offset of the header's CRC, its last field.
const CRC_OFFSET: usize = HEADER_LEN - 4;

/// Asserts these invariants of a datagram that can be parsed:
/// - It encodes to the same bytes, with or without padding.
/// - The CRC is good exactly when it is that of the bytes, whatever the relay byte.
/// - Records are whole, as many as announced, and copy to the same bytes.
/// - Heartbeats and events encode to the same bytes.
pub fn datagram(bytes: &[u8]) {
    let mut aligned = AlignedCopy::default();
    let bytes = aligned.of(bytes);
    let Ok(datagram) = Datagram::parse(bytes) else {
        return;
    };
    let header = datagram.header();
    let whole = datagram.bytes();
    assert_eq!(whole.len(), header.datagram_len(), "header + payload");
    assert_eq!(whole, &bytes[..whole.len()]);
    assert_eq!(header.to_bytes(datagram.crc()), whole[..HEADER_LEN]);
    assert!(whole.ends_with(datagram.payload()));
    assert_eq!(datagram.payload().len(), usize::from(header.payload_len));
    let oldest = header.oldest();
    assert!(oldest.is_none_or(|oldest| oldest.0 <= header.sequence.0.max(1)));

    let again = Datagram::parse(whole).expect("without padding it is the same");
    assert_eq!((again.header(), again.crc()), (header, datagram.crc()));
    for cut in [0, HEADER_LEN - 1, whole.len() - 1] {
        assert!(
            Datagram::parse(&whole[..cut]).is_err(),
            "{cut} bytes of {}",
            whole.len()
        );
    }
    sealed(whole, datagram.verdict());
    payload(&datagram);
}

fn sealed(whole: &[u8], verdict: CrcVerdict) {
    let mut copy = whole.to_vec();
    let head = copy.first_chunk().expect("a header");
    let crc = crc_of(head, &copy[HEADER_LEN..]).to_le_bytes();
    let fits = copy[CRC_OFFSET..HEADER_LEN] == crc;
    assert_eq!(verdict == CrcVerdict::Good, fits);
    copy[CRC_OFFSET..HEADER_LEN].copy_from_slice(&crc);
    copy[RELAY_OFFSET] ^= 0x81;
    let verdict = Datagram::parse(&copy).map(|sealed| sealed.verdict());
    assert_eq!(verdict, Ok(CrcVerdict::Good), "sealed anew");
    let last = copy.len() - 1;
    copy[last] ^= 1;
    let verdict = Datagram::parse(&copy).map(|damaged| damaged.verdict());
    assert_eq!(verdict, Ok(CrcVerdict::Bad), "damaged");
}

fn payload(datagram: &Datagram<'_>) {
    let payload = datagram.payload();
    if let Ok(records) = datagram.records()
        && datagram.header().kind == Kind::Data
    {
        assert_eq!(records.bytes(), payload);
        assert_eq!(records.len(), usize::from(datagram.header().count));
        let mut batch = RecordBatch::default();
        for record in records {
            assert!(tickcast_reliability::record::record_len(record.header().rtype).is_some());
        }
        batch.extend(records);
        assert_eq!((batch.bytes(), batch.len()), (payload, records.len()));
    }
    if let Some(heartbeat) = Heartbeat::parse(payload) {
        assert_eq!(Heartbeat::parse(&heartbeat.to_bytes()), Some(heartbeat));
        let written = heartbeat.to_bytes();
        assert_eq!(written[..13], payload[..13]);
        assert_eq!(written[16..], payload[16..Heartbeat::LEN]);
    }
    if let Some(event) = StreamEvent::parse(payload) {
        let mut body = Vec::new();
        event.write(&mut body);
        let expected = match event {
            // This many are encoded as none, which means all.
            StreamEvent::SourceLost {
                source,
                reason,
                from,
                messages,
                ref instruments,
            } if instruments.len() > StreamEvent::INSTRUMENTS_MAX => StreamEvent::SourceLost {
                source,
                reason,
                from,
                messages,
                instruments: Vec::new(),
            },
            StreamEvent::SourceSilent {
                source,
                since,
                ref instruments,
            } if instruments.len() > StreamEvent::INSTRUMENTS_MAX => StreamEvent::SourceSilent {
                source,
                since,
                instruments: Vec::new(),
            },
            StreamEvent::SourceBack {
                source,
                since,
                ref instruments,
            } if instruments.len() > StreamEvent::INSTRUMENTS_MAX => StreamEvent::SourceBack {
                source,
                since,
                instruments: Vec::new(),
            },
            other => other,
        };
        assert_eq!(StreamEvent::parse(&body), Some(expected));
    }
}
