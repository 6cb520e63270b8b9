//! The directory of connector files: which files are read, and the conflict of two with the same name.

use std::{
    io,
    path::{Path, PathBuf},
};

use crate::config::problem::Problem;

/// Maximum connector files in a directory: far more than one cluster runs, and few enough to check every few seconds.
pub const FILE_COUNT_LIMIT: usize = 1_000;

/// The `.json` files of a directory, sorted by name. Hidden files are skipped: editors and mounts create them.
///
/// # Errors
/// The directory cannot be read, or has more than [`FILE_COUNT_LIMIT`] such files.
pub fn files(directory: &Path) -> Result<Vec<PathBuf>, Problem> {
    let problem = |rule, remedy| Problem::new("connectors.dir", rule, remedy);
    let unreadable = |error: io::Error| {
        let rule = format!("cannot be read ({})", error.kind());
        problem(rule, "correct the path or its permissions, or leave it out")
    };
    let mut files = Vec::new();
    for entry in std::fs::read_dir(directory).map_err(unreadable)? {
        let path = entry.map_err(unreadable)?.path();
        let is_hidden = path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
        if is_hidden || path.extension().is_none_or(|extension| extension != "json") {
            continue;
        }
        if files.len() == FILE_COUNT_LIMIT {
            let rule = format!("holds more than {FILE_COUNT_LIMIT} connector files");
            return Err(problem(rule, "name a directory of connector files only, or remove some"));
        }
        files.push(path);
    }
    files.sort();
    Ok(files)
}

/// The problem that two files declare the same connector, reported for the second.
#[must_use]
pub fn declared_twice(name: &str, first: &Path, second: &Path) -> Problem {
    Problem::new(
        format!("{}: name", second.display()),
        format!("{name} is the name of two connectors: {} declares it too", first.display()),
        "rename one of them, or remove one of the files",
    )
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn visible_json_files_are_listed_by_name() {
        let directory = tempfile::tempdir().unwrap();
        for name in ["b.json", "a.json", ".a.json.swp", ".#b.json", "..data", "c.yaml", "json"] {
            fs::write(directory.path().join(name), "{}").unwrap();
        }

        let files = files(directory.path()).unwrap();

        let names: Vec<_> = files.iter().map(|path| path.file_name().unwrap().to_str().unwrap()).collect();
        assert_eq!(names, ["a.json", "b.json"]);
    }

    #[test]
    fn directory_with_too_many_files_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        for number in 0..=FILE_COUNT_LIMIT {
            fs::write(directory.path().join(format!("{number}.json")), "").unwrap();
        }

        let refused = files(directory.path()).unwrap_err().to_string();
        fs::remove_file(directory.path().join("0.json")).unwrap();

        assert!(refused.contains("connectors.dir") && refused.contains("more than 1000"), "{refused}");
        assert_eq!(files(directory.path()).unwrap().len(), FILE_COUNT_LIMIT);
    }

    #[test]
    fn missing_directory_is_reported_under_its_key() {
        let refused = files(Path::new("/nowhere/at/all")).unwrap_err().to_string();

        assert!(refused.starts_with("connectors.dir: cannot be read"), "{refused}");
    }
}
