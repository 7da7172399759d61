//! Resources: what a punchcard is taken on, in one spelling, and which of them overlap.
