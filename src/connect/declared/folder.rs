//! The connector files: which exist, and their content. Reads a file again only if it may have changed.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use crate::{
    config::{
        Problem,
        connector::{ConnectorDocument, declared_twice, files},
    },
    connect::herder::Declaration,
};

/// The results of the last scans. Scanning blocks.
#[derive(Debug)]
pub(super) struct Folder {
    directory: Option<PathBuf>,
    /// Scanned in addition to the directory's files.
    files: Vec<PathBuf>,
    known: BTreeMap<PathBuf, KnownFile>,
}

/// A file in one scan.
#[derive(Debug, Clone)]
pub(super) struct FoundFile {
    /// Connector it declares; `None` if it could never be read.
    pub(super) name: Option<String>,
    pub(super) file: String,
    pub(super) content: FileContent,
}

/// What a scan found in a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum FileContent {
    /// A declaration.
    Declares(Arc<Declaration>),
    /// It may be half written.
    Incomplete,
    /// It cannot be used, for this reason.
    Unusable(String),
}

#[derive(Debug, Default)]
struct KnownFile {
    stamp: Option<FileStamp>,
    /// It was read at a scan that found it unchanged since the scan before. So a second write within one tick of the file
    /// system's clock has been read too.
    is_steady: bool,
    /// Its content when it could last be read.
    declaration: Option<Arc<Declaration>>,
    /// Why it cannot be used, once two scans agree.
    failure: Option<String>,
    /// Scans in a row that could not read it, since it was last steady.
    failures: u32,
    /// The last scan did not find it.
    is_missed: bool,
}

/// Changes whenever the file's content does. Links are followed: a mount that swaps them shows other files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FileStamp {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Folder {
    pub(super) fn new(directory: Option<PathBuf>, files: Vec<PathBuf>) -> Self {
        Self { directory, files, known: BTreeMap::new() }
    }

    /// Every file, ordered by path. A file that is missing for the first time still counts: editors and mounts replace files in
    /// two steps.
    ///
    /// # Errors
    /// The directory cannot be read; the known files stay.
    pub(super) fn scan(&mut self) -> Result<Vec<FoundFile>, Problem> {
        let mut paths: BTreeSet<PathBuf> = self.files.iter().cloned().collect();
        if let Some(directory) = &self.directory {
            paths.extend(files(directory)?);
        }
        let mut missing: BTreeSet<PathBuf> = self.known.keys().cloned().collect();
        for path in paths {
            let stamp = FileStamp::of(&path);
            if stamp.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
                continue;
            }
            missing.remove(&path);
            let known = self.known.entry(path.clone()).or_default();
            known.is_missed = false;
            known.refresh(&path, stamp.ok());
        }
        for path in missing {
            match self.known.get_mut(&path) {
                Some(known) if !known.is_missed => known.is_missed = true,
                _ => drop(self.known.remove(&path)),
            }
        }
        Ok(self.found())
    }

    fn found(&self) -> Vec<FoundFile> {
        let mut declared: BTreeMap<&str, Vec<&Path>> = BTreeMap::new();
        for (path, known) in self.known.iter().filter(|(_, known)| !known.is_missed) {
            if let Some(declaration) = &known.declaration {
                declared.entry(&declaration.document.name).or_default().push(path);
            }
        }
        let found = self.known.iter().filter_map(|(path, known)| {
            let name = known.declaration.as_ref().map(|declaration| declaration.document.name.as_str());
            let rival = name
                .and_then(|name| declared.get(name))
                .and_then(|paths| paths.iter().find(|other| **other != path.as_path()));
            let content = match (name, rival) {
                // The file was renamed.
                (Some(_), Some(_)) if known.is_missed => return None,
                (Some(name), Some(rival)) => {
                    FileContent::Unusable(declared_twice(name, rival, path).to_string())
                }
                _ => known.content(),
            };
            Some(FoundFile { name: name.map(str::to_owned), file: file_name(path), content })
        });
        found.collect()
    }
}

impl KnownFile {
    /// Reads the file if it may have changed.
    fn refresh(&mut self, path: &Path, stamp: Option<FileStamp>) {
        let is_same = stamp.is_some() && stamp == self.stamp;
        if is_same && self.is_steady {
            return;
        }
        if self.is_steady {
            self.failures = 0;
        }
        self.stamp = stamp;
        self.is_steady = is_same;
        match ConnectorDocument::load(path) {
            Ok((document, _)) => {
                let document = document.named();
                let declaration = Declaration { file: file_name(path), hash: document.hash(), document };
                self.declaration = Some(Arc::new(declaration));
                self.failure = None;
                self.failures = 0;
            }
            // The first scan may have come in the middle of a write.
            Err(_) if self.failures == 0 => self.failures = 1,
            Err(problems) => {
                self.failure = Some(problems.to_string());
                self.failures = self.failures.saturating_add(1);
            }
        }
    }

    fn content(&self) -> FileContent {
        match (&self.failure, &self.declaration) {
            (Some(reason), _) => FileContent::Unusable(reason.clone()),
            (None, Some(declaration)) => FileContent::Declares(Arc::clone(declaration)),
            (None, None) => FileContent::Incomplete,
        }
    }
}

impl FileStamp {
    fn of(path: &Path) -> io::Result<Self> {
        let data = std::fs::metadata(path)?;
        Ok(Self {
            device: data.dev(),
            inode: data.ino(),
            size: data.size(),
            modified: (data.mtime(), data.mtime_nsec()),
            changed: (data.ctime(), data.ctime_nsec()),
        })
    }
}

/// The name without its directory: workers may have the same files at different places.
fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use super::*;

    /// A directory of connector files.
    struct Place(tempfile::TempDir);

    impl Place {
        fn new() -> (Self, Folder) {
            let place = Self(tempfile::tempdir().unwrap());
            let folder = Folder::new(Some(place.0.path().to_owned()), Vec::new());
            (place, folder)
        }

        fn path(&self, file: &str) -> PathBuf {
            self.0.path().join(file)
        }

        fn write(&self, file: &str, text: &str) {
            fs::write(self.path(file), text).unwrap();
        }
    }

    fn text(name: &str, value: &str) -> String {
        format!(r#"{{"name": "{name}", "config": {{"k": "{value}"}}}}"#)
    }

    /// Names with the value of `k`, or the reason why there is none.
    fn scan(folder: &mut Folder) -> Vec<(String, String)> {
        let found = folder.scan().unwrap().into_iter().map(|found| {
            let content = match found.content {
                FileContent::Declares(declaration) => declaration.document.config["k"].clone(),
                FileContent::Incomplete => "incomplete".to_owned(),
                FileContent::Unusable(reason) => reason,
            };
            (found.name.unwrap_or_else(|| "?".to_owned()), content)
        });
        found.collect()
    }

    fn pairs(expected: &[(&str, &str)]) -> Vec<(String, String)> {
        expected.iter().map(|(name, content)| ((*name).to_owned(), (*content).to_owned())).collect()
    }

    #[test]
    fn change_within_one_clock_tick_is_found_by_the_next_scan() {
        let (place, mut folder) = Place::new();
        place.write("a.json", &text("a", "1"));
        let first = scan(&mut folder);

        place.write("a.json", &text("a", "2"));
        let second = scan(&mut folder);

        assert_eq!(first, pairs(&[("a", "1")]));
        assert_eq!(second, pairs(&[("a", "2")]));
    }

    #[test]
    fn unchanged_file_is_read_twice_only() {
        let (place, mut folder) = Place::new();
        place.write("a.json", &text("a", "1"));
        scan(&mut folder);
        scan(&mut folder);
        let declaration = folder.known[&place.path("a.json")].declaration.clone().unwrap();

        scan(&mut folder);

        let again = folder.known[&place.path("a.json")].declaration.clone().unwrap();
        assert!(Arc::ptr_eq(&declaration, &again));
    }

    #[test]
    fn half_written_file_is_unusable_at_the_second_scan() {
        let (place, mut folder) = Place::new();
        let whole = text("a", "1");
        place.write("a.json", &whole);
        scan(&mut folder);

        place.write("a.json", &whole[..20]);
        let at_once = scan(&mut folder);
        let later = scan(&mut folder);
        place.write("a.json", "");
        let being_rewritten = scan(&mut folder);
        place.write("a.json", &text("a", "2"));
        let rewritten = scan(&mut folder);
        place.write("b.json", "");
        let fresh = scan(&mut folder);

        assert_eq!(at_once, pairs(&[("a", "1")]), "the last readable content");
        assert_eq!(later[0].0, "a", "its name is known from the last readable content");
        assert!(later[0].1.contains("is not JSON"), "{later:?}");
        assert_eq!(being_rewritten, later, "an editor empties a file before it writes");
        assert_eq!(rewritten, pairs(&[("a", "2")]));
        assert_eq!(fresh, pairs(&[("a", "2"), ("?", "incomplete")]));
    }

    #[test]
    fn files_with_the_same_connector_name_are_both_unusable() {
        let (place, mut folder) = Place::new();
        place.write("one.json", &text("a", "1"));
        place.write("two.json", &text("a", "2"));
        place.write("three.json", &text("b", "3"));

        let found = scan(&mut folder);

        let content: Vec<_> =
            found.iter().filter(|(name, _)| name == "a").map(|(_, content)| content).collect();
        assert_eq!(content.len(), 2);
        for reason in content {
            assert!(reason.contains("one.json") && reason.contains("two.json"), "{reason}");
        }
        assert!(found.contains(&("b".to_owned(), "3".to_owned())));
    }

    #[test]
    fn missing_file_stays_for_one_more_scan() {
        let (place, mut folder) = Place::new();
        place.write("a.json", &text("a", "1"));
        place.write("b.json", &text("b", "1"));
        scan(&mut folder);

        fs::remove_file(place.path("a.json")).unwrap();
        fs::rename(place.path("b.json"), place.path("c.json")).unwrap();

        assert_eq!(scan(&mut folder), pairs(&[("a", "1"), ("b", "1")]));
        assert_eq!(scan(&mut folder), pairs(&[("b", "1")]));
    }

    #[test]
    fn swapped_links_show_new_files_and_a_broken_link_is_missing() {
        let (place, mut folder) = Place::new();
        for (version, value) in [("..1", "1"), ("..2", "2")] {
            fs::create_dir(place.path(version)).unwrap();
            place.write(&format!("{version}/a.json"), &text("a", value));
        }
        symlink("..1", place.path("..data")).unwrap();
        symlink("..data/a.json", place.path("a.json")).unwrap();
        let before = [scan(&mut folder), scan(&mut folder), scan(&mut folder)];

        symlink("..2", place.path("..data_tmp")).unwrap();
        fs::rename(place.path("..data_tmp"), place.path("..data")).unwrap();
        let swapped = scan(&mut folder);
        fs::remove_file(place.path("..2/a.json")).unwrap();
        scan(&mut folder);
        let broken = scan(&mut folder);

        assert!(before.iter().all(|found| *found == pairs(&[("a", "1")])), "{before:?}");
        assert_eq!(swapped, pairs(&[("a", "2")]));
        assert_eq!(broken, pairs(&[]));
    }

    #[test]
    fn unreadable_directory_keeps_the_known_files() {
        let (place, mut folder) = Place::new();
        let inner = place.path("inner");
        fs::create_dir(&inner).unwrap();
        place.write("inner/a.json", &text("a", "1"));
        folder.directory = Some(inner.clone());
        scan(&mut folder);

        fs::rename(&inner, place.path("away")).unwrap();
        let refused = [folder.scan(), folder.scan(), folder.scan()];
        fs::rename(place.path("away"), &inner).unwrap();

        assert!(refused.iter().all(Result::is_err));
        assert_eq!(scan(&mut folder), pairs(&[("a", "1")]));
    }

    #[test]
    fn files_of_command_line_and_directory_are_both_scanned() {
        let (place, _) = Place::new();
        fs::create_dir(place.path("dir")).unwrap();
        place.write("dir/a.json", &text("a", "1"));
        place.write("alone", &text("b", "2"));
        let mut folder =
            Folder::new(Some(place.path("dir")), vec![place.path("alone"), place.path("absent")]);

        let mut found = scan(&mut folder);

        found.sort();
        assert_eq!(found, pairs(&[("a", "1"), ("b", "2")]));
    }
}
