//! Cycles among modules, of the first level and of the second, such as `connect::herder`.
//!
//! Files → edges between modules with the same parent → strongly connected components. A path counts as
//! written, and also with its imported names resolved. A path to a sibling through a glob of their parent is no edge.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::source::{Mention, Source};
use super::{HERE, Place};

/// Modules of unit tests and their helpers. Their imports do not count.
const TEST_MODULES: [&str; 3] = ["tests", "stub", "samples"];

/// Cycles that are not in `known`, and modules in `known` that are in no cycle.
pub(super) fn check(files: &[(String, String)], known: &[(&str, &[&str])]) -> Vec<String> {
    let mut modules: BTreeMap<&str, BTreeSet<Vec<String>>> = BTreeMap::new();
    let mut mentions: BTreeMap<&str, Vec<(&str, Mention)>> = BTreeMap::new();
    let mut imports: BTreeMap<&str, BTreeMap<Vec<String>, Vec<String>>> = BTreeMap::new();
    for (path, text) in files {
        let Some(place) = Place::of(path) else { continue };
        let source = Source::read(place.module.clone(), text);
        mentions
            .entry(place.krate)
            .or_default()
            .extend(source.mentions().into_iter().map(|mention| (path.as_str(), mention)));
        imports.entry(place.krate).or_default().extend(source.imports());
        modules.entry(place.krate).or_default().insert(place.module);
    }
    for (krate, mentions) in &mut mentions {
        let stands_for = |(file, mention): &(_, Mention)| {
            (*file, Mention { path: resolved(&mention.path, &imports[krate]), ..mention.clone() })
        };
        let further: Vec<_> = mentions.iter().map(stands_for).collect();
        mentions.extend(further);
    }
    let mut faults = Vec::new();
    let mut cyclic = BTreeSet::new();
    for (krate, mentions) in &mentions {
        for depth in 1..=2 {
            let graph = Graph::new(depth, &modules[krate], mentions);
            for component in graph.components() {
                cyclic.extend(component.iter().map(|module| (*krate, (*module).to_owned())));
                let listed = known.iter().find(|(of, members)| {
                    of == krate && members.iter().any(|member| component.contains(member))
                });
                let listed = listed.map_or(&[][..], |(_, members)| *members);
                if let Some(module) = component.iter().find(|module| !listed.contains(module)) {
                    faults.push(format!("{krate}: modules form a cycle: {}", graph.cycle(module)));
                }
            }
        }
    }
    for (krate, members) in known {
        for member in members.iter().filter(|member| !cyclic.contains(&(*krate, (**member).to_owned()))) {
            faults.push(format!(
                "{krate}: {member} is no longer part of a cycle: remove it from KNOWN_CYCLES in {HERE}"
            ));
        }
    }
    faults
}

/// Resolves a path: replaces imported names by their targets.
fn resolved(path: &[String], imports: &BTreeMap<Vec<String>, Vec<String>>) -> Vec<String> {
    /// Chains are shorter; two imports of each other have no end.
    const LONGEST_CHAIN: usize = 8;
    let mut path = path.to_vec();
    for _ in 0..LONGEST_CHAIN {
        let imported = |length| imports.get(&path[..length]).map(|named| (length, named));
        let Some((length, named)) = (1..=path.len()).find_map(imported) else { break };
        path = [named.as_slice(), &path[length..]].concat();
    }
    path
}

/// Edges from each module to the modules it names, at one depth of a crate, with the place of the first mention.
#[derive(Default)]
struct Graph {
    edges: BTreeMap<String, BTreeMap<String, String>>,
}

impl Graph {
    /// `depth` is 1 for the crate's top-level modules, 2 for the modules in those. `modules` are all modules of the crate.
    /// Mentions come with the file they are in.
    fn new(depth: usize, modules: &BTreeSet<Vec<String>>, mentions: &[(&str, Mention)]) -> Self {
        let mut graph = Self::default();
        for (file, Mention { line, within, path, .. }) in mentions {
            if within.iter().any(|module| TEST_MODULES.contains(&module.as_str())) {
                continue;
            }
            let (Some(from), Some(to)) = (within.get(..depth), path.get(..depth)) else { continue };
            let are_siblings = from[..depth - 1] == to[..depth - 1] && from != to;
            if are_siblings && modules.contains(from) && modules.contains(to) {
                let named = graph.edges.entry(from.join("::")).or_default();
                named.entry(to.join("::")).or_insert_with(|| format!("{file}:{line}"));
            }
        }
        graph
    }

    /// Groups of modules each of which reaches all others of its group.
    fn components(&self) -> BTreeSet<BTreeSet<&str>> {
        let reached: BTreeMap<_, _> =
            self.edges.keys().map(|from| (from.as_str(), self.reached(from))).collect();
        let reaches =
            |from: &str, to: &str| reached.get(from).is_some_and(|reached| reached.contains_key(to));
        let component = |of: &&str| {
            reached.keys().copied().filter(|other| reaches(of, other) && reaches(other, of)).collect()
        };
        reached.keys().filter(|module| reaches(module, module)).map(component).collect()
    }

    /// The shortest cycle through `module`, as `a -> b (file:line) -> a (file:line)`.
    fn cycle(&self, module: &str) -> String {
        let reached = self.reached(module);
        let mut steps = Vec::new();
        let mut to = module;
        while let Some(from) = reached.get(to) {
            steps.push(format!(" -> {to} ({})", self.edges[*from][to]));
            to = from;
            if to == module {
                break;
            }
        }
        steps.push(module.to_owned());
        steps.into_iter().rev().collect()
    }

    /// The modules that `start` reaches, itself only through a cycle. Each comes with the one before it on a shortest path.
    fn reached<'a>(&'a self, start: &'a str) -> BTreeMap<&'a str, &'a str> {
        let mut reached = BTreeMap::new();
        let mut waiting = VecDeque::from([start]);
        while let Some(from) = waiting.pop_front() {
            for to in self.edges.get(from).into_iter().flat_map(BTreeMap::keys) {
                if !reached.contains_key(to.as_str()) {
                    reached.insert(to.as_str(), from);
                    waiting.push_back(to);
                }
            }
        }
        reached
    }
}
