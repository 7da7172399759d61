//! Where a claim on a resource stands in an index by path, and where everything that overlaps it stands.
//!
//! A path is a node in a tree of segments. At each node there are rows for what is claimed right there, by scheme, and rows
//! for what is claimed somewhere below it. So whatever overlaps a file or tree is found at the nodes on the way from the root
//! to it, and, for a tree, among the rows "below" of its own node: as many look-ups as the path is long, however many claims
//! there are.

use crate::key::Key;
use crate::record::{Kind, kind_prefix};
use crate::resource::{Resource, Scheme};

pub(super) struct Places {
    /// Its own place first, then those of the trees that cover it, the nearest first.
    pub covering: Vec<Key>,
    /// For a tree, the place of a file of the same name, and the start of the rows of all that is claimed below.
    pub covered: Option<(Key, Key)>,
    /// The rows "below" of the trees above, where a claim on the resource is entered.
    pub above: Vec<Key>,
}

impl Places {
    pub fn of(index: Kind, tenant: &str, resource: &Resource) -> Self {
        let (scheme, segments) = (resource.scheme(), resource.segments());
        // Files and trees share their nodes; services and deploy targets have some of their own.
        let space = if scheme.is_path() { Scheme::Tree } else { scheme };
        let mut node = kind_prefix(tenant, index).byte(space as u8);
        let (mut covering, mut above) = (Vec::with_capacity(segments.len() + 2), Vec::with_capacity(segments.len()));
        for segment in segments {
            if scheme.is_path() {
                covering.push(here(&node, Scheme::Tree));
                above.push(below(&node));
            }
            node = node.text(segment);
        }
        if scheme == Scheme::File {
            covering.push(here(&node, Scheme::Tree));
        }
        covering.push(here(&node, scheme));
        covering.reverse();
        let covered = (scheme == Scheme::Tree).then(|| (here(&node, Scheme::File), below(&node)));
        Self { covering, covered, above }
    }

    pub fn own(&self) -> &Key {
        &self.covering[0]
    }

    /// The places of single claims that overlap; what is claimed below a tree comes on top.
    pub fn meeting(&self) -> impl Iterator<Item = &Key> {
        self.covering.iter().chain(self.covered.as_ref().map(|(file, _)| file))
    }
}

// A segment is not empty and holds no control character, so that no segment begins like these two.

fn here(node: &Key, scheme: Scheme) -> Key {
    node.clone().byte(0).byte(scheme as u8)
}

fn below(node: &Key) -> Key {
    node.clone().byte(1)
}
