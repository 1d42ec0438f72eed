//! The beginning of a file: opens it, and recognises its format by its first bytes.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use super::error::{self, CaptureError, CaptureFault};
use super::{CaptureFormat, Reader, guess, input::Input, pcap, pcapng};
use super::{pcap::PcapReader, pcapng::PcapNgReader};

/// Opens a file, a FIFO or standard input, and returns its size if it is a regular file.
pub(super) fn open_input(path: &Path) -> Result<(Input, Option<u64>), CaptureError> {
    let at = |source: io::Error| match source.kind() {
        ErrorKind::NotFound => CaptureError::Missing { path: path.into() },
        _ => CaptureFault::Io(source).at(path, 0),
    };
    if path == Path::new("-") {
        return Ok((Input::new(io::stdin()).map_err(at)?, None));
    }
    let file = File::open(path).map_err(at)?;
    let metadata = file.metadata().map_err(at)?;
    if metadata.is_dir() {
        return Err(CaptureError::Directory { path: path.into() });
    }
    let size = metadata.is_file().then_some(metadata.len());
    Ok((Input::new(file).map_err(at)?, size))
}

/// Returns the format of a capture file that begins here.
pub(super) fn begins_file(bytes: &[u8]) -> Option<CaptureFormat> {
    let magic = bytes.first_chunk::<4>()?;
    if *magic == pcapng::MAGIC {
        let order = bytes.get(8..12)?;
        let is_section = matches!(order, [0x1a, 0x2b, 0x3c, 0x4d] | [0x4d, 0x3c, 0x2b, 0x1a]);
        return is_section.then_some(CaptureFormat::PcapNg);
    }
    let is_version = matches!(bytes.get(4..8)?, [2, 0, 4, 0] | [0, 2, 0, 4]);
    (pcap::MAGICS.contains(magic) && is_version).then_some(CaptureFormat::Pcap)
}

/// Opens the reader of the capture file that begins here; `None` if none does.
pub(super) fn open_reader(
    input: &mut Input,
) -> Result<Option<(CaptureFormat, Reader)>, CaptureFault> {
    input.ensure(pcapng::MAGIC.len())?;
    let Some(magic) = input.visible().first_chunk::<4>() else {
        return Ok(None);
    };
    if *magic == pcapng::MAGIC {
        let reader = Reader::PcapNg(PcapNgReader::default());
        return Ok(Some((CaptureFormat::PcapNg, reader)));
    }
    if pcap::MAGICS.contains(magic) {
        // A file that ends within its header leaves its bytes to the end.
        let reader = PcapReader::open(input)?.map_or(Reader::Ended, Reader::Pcap);
        return Ok(Some((CaptureFormat::Pcap, reader)));
    }
    Ok(None)
}

/// Returns the error of a file that begins like no capture.
pub(super) fn not_a_capture(path: &Path, input: &mut Input) -> CaptureError {
    let path: PathBuf = path.into();
    let guess = guess::Guess::of_file(input.visible());
    // Corrupt bytes may be of any format.
    if guess.is_none()
        && let Some(fault) = input.take_fault()
    {
        return CaptureFault::Io(fault).at(&path, input.visible().len() as u64);
    }
    let head = input.visible();
    if head.is_empty() && !input.is_cut() {
        return CaptureError::Empty { path };
    }
    if input.is_cut() && head.len() < pcapng::MAGIC.len() {
        return CaptureFault::Damaged(error::CUT).at(&path, head.len() as u64);
    }
    CaptureError::NotACapture {
        path,
        guess,
        head: head[..head.len().min(4)].to_vec(),
    }
}
