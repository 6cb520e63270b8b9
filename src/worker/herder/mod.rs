//! What the REST API does, without HTTP: reads answered from the tails, writes through the arbiter.
