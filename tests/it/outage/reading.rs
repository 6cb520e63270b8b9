//! Reading what is no longer all there: a gap is an error and never a jump, and holes do not keep a reading from ending.

crate::tests! {}
