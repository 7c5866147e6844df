//! Calls every method of the layers that could change a name or a file, both as SQLite calls it and as SQLite never
//! does.

use std::collections::BTreeMap;
use std::ffi::{CString, c_char, c_int, c_void};
use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::ptr;

use rusqlite::ffi;
use tempfile::TempDir;

use super::{WalState, vfs};

const LAYERS: [WalState; 3] = [WalState::Possible, WalState::Missing, WalState::WithoutIndex];
const NAMES: [&str; 4] = ["x.sqlite", "x.sqlite-wal", "x.sqlite-shm", "x.sqlite-journal"];

/// The file types that SQLite passes to `xOpen`.
const TYPES: [c_int; 5] = [
    ffi::SQLITE_OPEN_MAIN_DB,
    ffi::SQLITE_OPEN_MAIN_JOURNAL,
    ffi::SQLITE_OPEN_SUPER_JOURNAL,
    ffi::SQLITE_OPEN_WAL,
    ffi::SQLITE_OPEN_TRANSIENT_DB,
];

/// The flags with which SQLite opens a file.
const WAYS: [c_int; 5] = [
    ffi::SQLITE_OPEN_READONLY,
    ffi::SQLITE_OPEN_READWRITE,
    ffi::SQLITE_OPEN_READWRITE | ffi::SQLITE_OPEN_CREATE,
    ffi::SQLITE_OPEN_READWRITE | ffi::SQLITE_OPEN_CREATE | ffi::SQLITE_OPEN_EXCLUSIVE,
    ffi::SQLITE_OPEN_READWRITE | ffi::SQLITE_OPEN_CREATE | ffi::SQLITE_OPEN_EXCLUSIVE | ffi::SQLITE_OPEN_DELETEONCLOSE,
];

/// One more than the largest file control, including some that a later SQLite may add.
const N_CONTROLS: c_int = 64;

/// Returns a name as SQLite passes it, followed by an empty list of URI parameters.
fn filename(path: &Path) -> Vec<u8> {
    [path.as_os_str().as_encoded_bytes(), &[0; 4]].concat()
}

/// Returns what must not change in a folder: names, contents, modes and times.
fn state(folder: &Path) -> BTreeMap<PathBuf, (Vec<u8>, u32, u64, [i64; 4])> {
    let of = |path: PathBuf| {
        let metadata = fs::metadata(&path).unwrap();
        let times = [metadata.mtime(), metadata.mtime_nsec(), metadata.ctime(), metadata.ctime_nsec()];
        let content = fs::read(&path).unwrap();
        (path, (content, metadata.mode(), metadata.ino(), times))
    };
    fs::read_dir(folder).unwrap().map(|entry| of(entry.unwrap().path())).collect()
}

/// Creates a folder with a file of each name, all with the same content and with different modes.
fn folder(content: &[u8]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (mode, name) in [0o644, 0o600, 0o640, 0o620].into_iter().zip(NAMES) {
        fs::write(folder.path().join(name), content).unwrap();
        fs::set_permissions(folder.path().join(name), Permissions::from_mode(mode)).unwrap();
    }
    folder
}

/// Opens a file and returns its handle, or the error code.
unsafe fn open(layer: *mut ffi::sqlite3_vfs, name: *const c_char, flags: c_int) -> Result<Box<[u64]>, c_int> {
    let mut handle = vec![0_u64; (unsafe { (*layer).szOsFile } as usize).div_ceil(8)].into_boxed_slice();
    let file = handle.as_mut_ptr().cast::<ffi::sqlite3_file>();
    let mut out_flags = 0;
    // SAFETY: the handle has as many bytes as the layer requires.
    let code = unsafe { (*layer).xOpen.unwrap()(layer, name, file, flags, &raw mut out_flags) };
    if code != ffi::SQLITE_OK {
        assert!(unsafe { (*file).pMethods }.is_null(), "SQLite would close the file");
        return Err(code);
    }
    assert_eq!(out_flags & ffi::SQLITE_OPEN_READONLY != 0, !name.is_null(), "foreign files must be opened read-only");
    Ok(handle)
}

/// Calls every method of an open file that could change it, and closes it.
unsafe fn use_all(handle: &mut [u64], is_database: bool) {
    let file = handle.as_mut_ptr().cast::<ffi::sqlite3_file>();
    // SAFETY: an open file and SQLite's usual arguments; controls have room for any result.
    unsafe {
        let methods = *(*file).pMethods;
        for level in [ffi::SQLITE_LOCK_SHARED, ffi::SQLITE_LOCK_RESERVED, ffi::SQLITE_LOCK_EXCLUSIVE] {
            methods.xLock.unwrap()(file, level);
        }
        let data = b"written".as_ptr().cast::<c_void>();
        for at in [0, 4_096, 1 << 20] {
            assert_eq!(methods.xWrite.unwrap()(file, data, 7, at), ffi::SQLITE_READONLY);
            assert_eq!(methods.xTruncate.unwrap()(file, at), ffi::SQLITE_READONLY);
        }
        for how in [ffi::SQLITE_SYNC_NORMAL, ffi::SQLITE_SYNC_FULL | ffi::SQLITE_SYNC_DATAONLY] {
            assert_eq!(methods.xSync.unwrap()(file, how), ffi::SQLITE_READONLY);
        }
        for operation in (0..N_CONTROLS).filter(|operation| *operation != ffi::SQLITE_FCNTL_VFSNAME) {
            for number in [-1, 0, 1 << 20] {
                let mut answer = [number as u64; 8];
                if operation == ffi::SQLITE_FCNTL_CHUNK_SIZE || operation == ffi::SQLITE_FCNTL_SIZE_HINT {
                    let code = methods.xFileControl.unwrap()(file, operation, answer.as_mut_ptr().cast());
                    assert_eq!(code, ffi::SQLITE_NOTFOUND, "control {operation}");
                } else {
                    methods.xFileControl.unwrap()(file, operation, answer.as_mut_ptr().cast());
                }
            }
        }
        if is_database {
            let mut region = ptr::null_mut();
            for number in 0..3 {
                methods.xShmMap.unwrap()(file, number, 32 << 10, 1, &raw mut region);
            }
            methods.xShmLock.unwrap()(file, 0, 1, ffi::SQLITE_SHM_LOCK | ffi::SQLITE_SHM_EXCLUSIVE);
            methods.xShmLock.unwrap()(file, 0, 1, ffi::SQLITE_SHM_UNLOCK | ffi::SQLITE_SHM_EXCLUSIVE);
            methods.xShmBarrier.unwrap()(file);
            assert_eq!(methods.xShmUnmap.unwrap()(file, 1), ffi::SQLITE_OK);
        }
        methods.xUnlock.unwrap()(file, ffi::SQLITE_LOCK_NONE);
        assert_eq!(methods.xClose.unwrap()(file), ffi::SQLITE_OK);
    }
}

fn layer(log: WalState) -> *mut ffi::sqlite3_vfs {
    // SAFETY: the name belongs to a layer that remains registered.
    unsafe { ffi::sqlite3_vfs_find(vfs(log).unwrap().as_ptr()) }
}

#[test]
fn no_method_changes_or_creates_a_file() {
    for content in [&b""[..], &[7; 9_000]] {
        let folder = folder(content);
        let before = state(folder.path());
        for layer in LAYERS.map(layer) {
            for name in NAMES.map(|name| filename(&folder.path().join(name))) {
                for (kind, way) in TYPES.iter().flat_map(|kind| WAYS.map(|way| (*kind, way))) {
                    let is_temporary = way & ffi::SQLITE_OPEN_DELETEONCLOSE != 0;
                    // SAFETY: the layer and the name live as long as the handle.
                    match unsafe { open(layer, name.as_ptr().cast(), kind | way) } {
                        Ok(mut handle) => unsafe { use_all(&mut handle, kind == ffi::SQLITE_OPEN_MAIN_DB) },
                        Err(code) => assert!(is_temporary && code == ffi::SQLITE_READONLY, "{kind:x} {way:x}: {code}"),
                    }
                    assert_eq!(state(folder.path()), before, "{kind:x} {way:x}");
                }
            }
        }
    }
}

#[test]
fn missing_files_are_not_created() {
    let folder = tempfile::tempdir().unwrap();
    for layer in LAYERS.map(layer) {
        let name = filename(&folder.path().join("none.sqlite"));
        for (kind, way) in TYPES.iter().flat_map(|kind| WAYS.map(|way| (*kind, way))) {
            // SAFETY: as above.
            assert!(unsafe { open(layer, name.as_ptr().cast(), kind | way) }.is_err());
        }
    }
    assert_eq!(state(folder.path()).len(), 0);
    // A database without an index does not get one, even if SQLite requests a growing one.
    fs::write(folder.path().join("x.sqlite"), [7; 9_000]).unwrap();
    let before = state(folder.path());
    let name = filename(&folder.path().join("x.sqlite"));
    for layer in LAYERS.map(layer) {
        // SAFETY: as above.
        unsafe { use_all(&mut open(layer, name.as_ptr().cast(), ffi::SQLITE_OPEN_MAIN_DB | WAYS[2]).unwrap(), true) };
    }
    assert_eq!(state(folder.path()), before);
}

#[test]
fn nothing_is_deleted() {
    for (content, code) in [(&b"content"[..], ffi::SQLITE_IOERR_DELETE), (&b""[..], ffi::SQLITE_OK)] {
        let folder = folder(content);
        let before = state(folder.path());
        for layer in LAYERS.map(layer) {
            for (name, sync) in NAMES.iter().flat_map(|name| [(name, 0), (name, 1)]) {
                let name = CString::new(folder.path().join(name).as_os_str().as_encoded_bytes()).unwrap();
                // SAFETY: the name is a NUL-terminated string.
                assert_eq!(unsafe { (*layer).xDelete.unwrap()(layer, name.as_ptr(), sync) }, code);
            }
            let missing = CString::new(folder.path().join("none").as_os_str().as_encoded_bytes()).unwrap();
            let code = unsafe { (*layer).xDelete.unwrap()(layer, missing.as_ptr(), 0) };
            assert_eq!(code, ffi::SQLITE_IOERR_DELETE_NOENT);
        }
        assert_eq!(state(folder.path()), before);
    }
}

#[test]
fn temporary_file_is_writable_and_has_no_name() {
    for layer in LAYERS.map(layer) {
        let flags = ffi::SQLITE_OPEN_TRANSIENT_DB | WAYS[4];
        // SAFETY: a null name requests a temporary file; the buffers live during the calls.
        unsafe {
            let mut handle = open(layer, ptr::null(), flags).unwrap();
            let file = handle.as_mut_ptr().cast::<ffi::sqlite3_file>();
            let methods = *(*file).pMethods;
            assert_eq!(methods.xWrite.unwrap()(file, b"written".as_ptr().cast(), 7, 3), ffi::SQLITE_OK);
            let mut read = [0_u8; 7];
            assert_eq!(methods.xRead.unwrap()(file, read.as_mut_ptr().cast(), 7, 3), ffi::SQLITE_OK);
            assert_eq!(&read, b"written");
            assert_eq!(methods.xTruncate.unwrap()(file, 0), ffi::SQLITE_OK);
            assert_eq!(methods.xClose.unwrap()(file), ffi::SQLITE_OK);
        }
    }
}

/// Replacing the system calls of a layer would replace those of every layer.
#[test]
fn system_calls_cannot_be_replaced() {
    for layer in LAYERS.map(layer) {
        // SAFETY: a layer that remains registered.
        let layer = unsafe { &*layer };
        assert!(layer.iVersion < 3 && layer.xSetSystemCall.is_none());
        assert!(layer.xGetSystemCall.is_none() && layer.xNextSystemCall.is_none());
    }
}
