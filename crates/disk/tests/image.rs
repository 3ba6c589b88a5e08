//! Images: what is kept comes back, and what is not an image of this disk is refused and left as it is.

mod random;

use ramfold::codec::{NAMES, by_name};
use ramfold::{Config, PAGE_SIZE, Page};
use ramfold_disk::face::{Disk, DiskError, Extent};
use ramfold_disk::image::format::{self, BODY, Header, HeaderError, ReadError, Writer};
use ramfold_disk::image::{Image, OpenError, SaveError};
use ramfold_disk::volume::{LEAST_MEMORY, Settings, Volume};
use random::bytes;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;

const PAGE: u64 = PAGE_SIZE as u64;
const PAGES: u64 = 4096;

fn volume(mem_limit: Option<u64>) -> Volume {
    let backing = mem_limit.map(|_| (tempfile::tempfile_in("/var/tmp").unwrap(), 64 << 20));
    let store = Config { recomp_algorithm: None, ..Config::default() };
    Volume::open(Settings { size: PAGES * PAGE, mem_limit, store, backing }).unwrap()
}

fn directory() -> tempfile::TempDir {
    tempfile::tempdir_in("/var/tmp").unwrap()
}

fn noise(seed: u64) -> Page {
    let mut bytes = bytes(seed);
    std::array::from_fn(|_| bytes.next().unwrap())
}

/// A page of each kind, in turn; None: nothing is written there.
fn page(number: u64) -> Option<Page> {
    let mut page: Page = std::array::from_fn(|at| (at / 100).to_le_bytes()[0]);
    page[..8].copy_from_slice(&number.to_le_bytes());
    match number % 7 {
        0 => None,
        1 => Some([0; PAGE_SIZE]),
        2 => Some([0xa5; PAGE_SIZE]),
        3 => Some(noise(number)),
        4 => Some(noise(4)),
        5 => Some(noise(5).map(|byte| byte & 3)),
        _ => Some(page),
    }
}

/// Writes pages of all kinds; holes of many pages between them.
fn fill(disk: &Volume) {
    let mut worker = disk.worker();
    for number in (0..PAGES).filter(|number| number / 512 % 2 == 0) {
        if let Some(page) = page(number) {
            disk.write(number * PAGE, &page, &mut worker).unwrap();
        }
    }
}

fn contents(disk: &Volume) -> Vec<u8> {
    let mut found = vec![0x5a; usize::try_from(disk.size()).unwrap()];
    disk.read(0, &mut found, &mut disk.worker()).unwrap();
    found
}

fn extents(disk: &Volume) -> Vec<Extent> {
    let mut found = vec![];
    disk.extents(0, disk.size(), &mut |extent| {
        found.push(extent);
        true
    });
    found
}

fn open(path: &Path) -> Result<Image, OpenError> {
    Image::open(path, PAGES * PAGE, false)
}

/// A disk that was served from there, and the image.
fn serve(path: &Path) -> (Volume, Image) {
    let (disk, mut image) = (volume(None), open(path).unwrap());
    image.restore(&disk, |_, _| ()).unwrap();
    image.serve(&disk, "lz4").unwrap();
    (disk, image)
}

/// An image of pages of all kinds.
fn kept(path: &Path, compressor: &str) -> (Vec<u8>, Vec<Extent>) {
    let (disk, mut image) = serve(path);
    fill(&disk);
    image.save(&disk, compressor, |_, _| ()).unwrap();
    (contents(&disk), extents(&disk))
}

#[test]
fn what_is_kept_comes_back_page_by_page() {
    let directory = directory();
    for (compressor, mem_limit) in NAMES.iter().flat_map(|name| [(name, None), (name, Some(LEAST_MEMORY))]) {
        let path = directory.path().join(format!("{compressor}-{mem_limit:?}"));
        let (bytes, pieces) = kept(&path, compressor);
        let metadata = fs::metadata(&path).unwrap();
        assert_eq!((metadata.mode() & 0o7777, metadata.nlink()), (0o600, 1));
        let (disk, mut image) = (volume(mem_limit), open(&path).unwrap());
        image.restore(&disk, |_, _| ()).unwrap();
        assert!(contents(&disk) == bytes && extents(&disk) == pieces, "{compressor}");
        assert!(!image.is_stale());
        assert_eq!(
            image.pages(),
            pieces.iter().filter(|it| it.kind == DATA).map(|it| it.len / PAGE).sum::<u64>()
        );
    }
    assert_eq!(directory.path().read_dir().unwrap().count(), 2 * NAMES.len(), "and nothing beside");
}

const DATA: ramfold_disk::face::ExtentKind = ramfold_disk::face::ExtentKind::Data;

#[test]
fn only_a_stop_in_order_makes_it_clean() {
    let directory = directory();
    let path = directory.path().join("image");
    let (bytes, _) = kept(&path, "lz4");
    // Looked at and not served: as it was. A disk of another size is nothing that it was.
    drop(open(&path).unwrap());
    assert!(matches!(Image::open(&path, PAGE, true), Err(OpenError::Size(size)) if size == PAGES * PAGE));
    // Served and stopped: clean, without being written if nothing was changed.
    let inode = fs::metadata(&path).unwrap().ino();
    let (disk, mut image) = serve(&path);
    assert!(matches!(open(&path), Err(OpenError::InUse)));
    image.save(&disk, "lz4", |_, _| ()).unwrap();
    drop(image);
    assert_eq!(fs::metadata(&path).unwrap().ino(), inode);
    // Served, changed and not stopped: refused, unless the older state is asked for.
    let (disk, image) = serve(&path);
    disk.write(0, &[1; 10], &mut disk.worker()).unwrap();
    drop(image);
    for _ in 0..2 {
        assert!(matches!(open(&path), Err(OpenError::Stale { .. })));
    }
    let (disk, mut image) = (volume(None), Image::open(&path, PAGES * PAGE, true).unwrap());
    image.restore(&disk, |_, _| ()).unwrap();
    assert!(image.is_stale() && contents(&disk) == bytes);
    image.serve(&disk, "lz4").unwrap();
    disk.discard(0, PAGES * PAGE, &mut disk.worker()).unwrap();
    image.save(&disk, "lz4", |_, _| ()).unwrap();
    drop((image, disk));
    let (disk, _) = serve(&path);
    assert!(contents(&disk).iter().all(|byte| *byte == 0), "what was discarded is gone");
}

#[test]
fn what_is_no_image_is_refused_and_left_as_it_is() {
    let directory = directory();
    let path = directory.path().join("image");
    for foreign in [&b""[..], b"x", b"ramfold-disk\r\n", &[0; 100_000]] {
        fs::write(&path, foreign).unwrap();
        assert!(matches!(open(&path), Err(OpenError::Header(HeaderError::NotAnImage))));
        assert_eq!(fs::read(&path).unwrap(), foreign);
    }
    assert!(matches!(open(Path::new("/dev/null")), Err(OpenError::NotAFile)));
    assert!(matches!(open(&directory.path().join("no/image")), Err(OpenError::NoDirectory)));
    assert!(matches!(open(Path::new("/")), Err(OpenError::Io(_))));
    fs::remove_file(&path).unwrap();
    kept(&path, "lz4");
    let whole = fs::read(&path).unwrap();
    let mut later = whole.clone();
    later[16] = 2;
    fs::write(&path, &later).unwrap();
    assert!(matches!(open(&path), Err(OpenError::Header(HeaderError::Version(2)))));
    // The front is cut anywhere, the rest by its length.
    for cut in (16..BODY).step_by(97).chain([BODY, BODY + 1, whole.len() as u64 - 1]) {
        fs::write(&path, &whole[..usize::try_from(cut).unwrap()]).unwrap();
        let error = open(&path).unwrap_err();
        assert!(
            matches!(error, OpenError::Header(HeaderError::Damaged) | OpenError::Length { .. }),
            "{cut}: {error}"
        );
    }
    fs::write(&path, [&whole[..], b"more"].concat()).unwrap();
    assert!(matches!(open(&path), Err(OpenError::Length { .. })));
    fs::write(&path, &whole).unwrap();
    assert!(open(&path).is_ok());
}

#[test]
fn a_new_image_that_nothing_was_served_from_goes_again() {
    let directory = directory();
    let path = directory.path().join("image");
    drop(open(&path).unwrap());
    assert!(!path.exists());
    // A link leads to where it points.
    drop(serve(&path));
    symlink("image", directory.path().join("link")).unwrap();
    let mut image = Image::open(&directory.path().join("link"), PAGES * PAGE, true).unwrap();
    let disk = volume(None);
    image.restore(&disk, |_, _| ()).unwrap();
    fill(&disk);
    image.save(&disk, "lz4", |_, _| ()).unwrap();
    assert!(directory.path().join("link").is_symlink() && fs::metadata(&path).unwrap().len() > BODY);
}

#[test]
fn a_file_that_was_put_in_its_place_is_not_written_over() {
    let directory = directory();
    let path = directory.path().join("image");
    let (disk, mut image) = serve(&path);
    fill(&disk);
    fs::rename(&path, directory.path().join("away")).unwrap();
    fs::write(&path, "mine").unwrap();
    assert!(matches!(image.save(&disk, "lz4", |_, _| ()), Err(SaveError::Replaced)));
    assert_eq!(
        (fs::read(&path).unwrap(), directory.path().read_dir().unwrap().count()),
        (b"mine".to_vec(), 2)
    );
    fs::remove_file(&path).unwrap();
    image.save(&disk, "lz4", |_, _| ()).unwrap();
    drop(image);
    assert!(contents(&serve(&path).0) == contents(&disk));
}

/// Pages of each kind, few of the large ones.
fn few() -> impl Iterator<Item = (u64, Page)> {
    let few = (0..600).filter(|number| number % 7 < 3 || number % 7 == 6 || *number < 14);
    few.filter_map(|number| Some((number, page(number)?)))
}

/// An image of them.
fn small() -> (Header, Vec<u8>) {
    let mut writer = Writer::new(Vec::new(), by_name("zstd").unwrap());
    few().for_each(|(number, page)| writer.page(number, &page).unwrap());
    let (body, header) = writer.finish(PAGES * PAGE, 7).unwrap();
    (header, body)
}

fn pages_of(header: &Header, body: &[u8]) -> (Vec<(u64, Page)>, Result<(), ReadError>) {
    let mut found = vec![];
    let end = format::read(body, header, &mut |number, page| {
        found.push((number, *page));
        Ok(())
    });
    (found, end)
}

#[test]
fn no_changed_bit_and_no_cut_is_taken_for_the_image() {
    let (header, body) = small();
    let (all, end) = pages_of(&header, &body);
    assert!(end.is_ok() && all.len() as u64 == header.pages && header.pages > 256);
    let mut changed = body.clone();
    for at in 0..body.len() {
        changed[at] ^= 1 << (at % 8);
        let (found, end) = pages_of(&header, &changed);
        assert!(matches!(end, Err(ReadError::Damaged(_))), "byte {at}");
        assert!(found == all[..found.len()], "what was given is right");
        changed[at] = body[at];
        if at % 13 == 0 {
            let shorter = Header { length: BODY + at as u64, ..header.clone() };
            assert!(pages_of(&shorter, &body).1.is_err() && pages_of(&header, &body[..at]).1.is_err());
        }
    }
    let block = header.block();
    assert_eq!(Header::parse(&block).as_ref(), Ok(&header));
    for at in 0..block.len() {
        let mut changed = block;
        changed[at] ^= 1 << (at % 8);
        assert!(Header::parse(&changed).is_err() && Header::parse(&block[..at]).is_err(), "byte {at}");
    }
}

#[test]
fn records_that_make_no_sense_are_refused_though_their_sums_are_right() {
    let record = |number: u64, kind: u16, len: u16, data: &[u8]| {
        [&number.to_le_bytes()[..], &kind.to_le_bytes(), &len.to_le_bytes(), data].concat()
    };
    let word = record(3, 2, 8, &[7; 8]);
    let ends = |pages: u64, chunks: &[(u32, &[u8])]| {
        let (header, body) = format::sealed(8 * PAGE, pages, "lz4", chunks);
        pages_of(&header, &body).1
    };
    assert!(ends(1, &[(1, &word)]).is_ok() && ends(0, &[]).is_ok());
    let twice = [&word[..], &word].concat();
    let (short, long) = (record(3, 2, 7, &[7; 7]), record(3, 0, 4097, &[7; 4097]));
    let wrong: [&[u8]; 6] = [
        &record(8, 2, 8, &[7; 8]),
        &record(u64::MAX, 2, 8, &[7; 8]),
        &record(3, 3, 8, &[7; 8]),
        &short,
        &long,
        &word[..19],
    ];
    for payload in wrong {
        assert!(matches!(ends(1, &[(1, payload)]), Err(ReadError::Damaged(_))));
    }
    for (pages, chunks) in [
        (2, &[(2, &twice[..])][..]),
        (2, &[(1, &word[..]), (1, &word)]),
        (1, &[(1, &twice)]),
        (2, &[(1, &word)]),
        (0, &[(0, &[])]),
        (1, &[(2, &word)]),
        (1, &[(257, &word)]),
    ] {
        assert!(matches!(ends(pages, chunks), Err(ReadError::Damaged(_))));
    }
}

#[test]
fn a_disk_that_takes_no_more_is_told_from_damage() {
    let (header, body) = small();
    let end = format::read(&body[..], &header, &mut |_, _| Err(DiskError::NoSpace));
    assert!(matches!(end, Err(ReadError::Disk(DiskError::NoSpace))));
}

/// Takes so many bytes, and no more.
struct Full(usize);

impl Write for Full {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        if self.0 == 0 {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let taken = data.len().min(self.0);
        self.0 -= taken;
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn room_that_ends_anywhere_is_told() {
    let length = small().1.len();
    for room in (0..length).step_by(211).chain([length - 1]) {
        let mut writer = Writer::new(Full(room), by_name("zstd").unwrap());
        let written = few().try_for_each(|(number, page)| writer.page(number, &page));
        assert!(written.is_err() || writer.finish(PAGES * PAGE, 7).is_err(), "room for {room} of {length}");
    }
}
