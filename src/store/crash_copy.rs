//! For tests: a copy of a database's files as a crash at this moment would leave them.

use std::{fs, io, path::Path};

/// Copies a directory recursively, one file after the other: writes in progress may be copied in part.
pub(crate) fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for file in fs::read_dir(from).unwrap() {
        let file = file.unwrap();
        let target = to.join(file.file_name());
        if file.file_type().unwrap().is_dir() {
            copy(&file.path(), &target);
        } else if let Err(error) = fs::copy(file.path(), target) {
            // A file listed under its temporary name may have been renamed since.
            assert_eq!(error.kind(), io::ErrorKind::NotFound, "{}: {error}", file.path().display());
        }
    }
}
