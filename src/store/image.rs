//! For tests: the files of a database as a crash at this moment would leave them.

use std::{fs, path::Path};

/// Copies a directory and all that is in it, one file after the other: what is written meanwhile may be there in part.
pub(crate) fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for file in fs::read_dir(from).unwrap() {
        let file = file.unwrap();
        let target = to.join(file.file_name());
        if file.file_type().unwrap().is_dir() {
            copy(&file.path(), &target);
        } else {
            fs::copy(file.path(), target).unwrap();
        }
    }
}
