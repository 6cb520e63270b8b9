//! For tests: the files of a database as a crash at this moment would leave them.

use std::{fs, io, path::Path};

/// Copies a directory and all that is in it, one file after the other: what is written meanwhile may be there in part.
pub(crate) fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for file in fs::read_dir(from).unwrap() {
        let file = file.unwrap();
        let target = to.join(file.file_name());
        if file.file_type().unwrap().is_dir() {
            copy(&file.path(), &target);
        } else if let Err(error) = fs::copy(file.path(), target) {
            // One that was listed under the name it is first written with has its own by now.
            assert_eq!(error.kind(), io::ErrorKind::NotFound, "{}: {error}", file.path().display());
        }
    }
}
