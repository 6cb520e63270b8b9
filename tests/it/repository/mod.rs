//! Tests of the repository: its layers, documents, image and fuzz targets.

mod docs;
mod fuzz;
mod image;
mod layering;
mod readme;

use crate::support::harness::Test;

pub(crate) fn tests() -> Vec<Test> {
    [docs::tests(), fuzz::tests(), image::tests(), layering::tests(), readme::tests()]
        .into_iter()
        .flatten()
        .collect()
}
