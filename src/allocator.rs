//! The allocator of the process, librdkafka included: both allocate on one thread what another frees. The system's allocator is slow at
//! that and keeps what was freed in as many arenas as there are threads.

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// What is free in one arena is of no use to another, so there are four, on whatever machine: in a container the allocator sees the cores
/// of the host, and would have four for each. What is free for half a second goes back to the system, also while nobody asks for
/// memory. `MALLOC_CONF` in the environment has the last word.
#[expect(unsafe_code, reason = "a symbol is what the allocator reads, before anything else runs")]
#[unsafe(export_name = "malloc_conf")]
#[used]
static SETTINGS: &[u8; 69] = b"narenas:4,dirty_decay_ms:500,muzzy_decay_ms:0,background_thread:true\0";
