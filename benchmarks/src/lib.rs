//! Side-by-side measurements; every program in `src/bin` is one benchmark.
