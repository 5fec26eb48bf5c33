// Short rows: LANES threads a row, all of it in registers.

constexpr int SHORT_THREADS = 128;

// R rows at once, from `first` on; -inf for rows that do not exist. start(row): its first element.
template <int LANES, int R, int V, class Arguments, class Start>
__device__ __forceinline__ void load_rows(uint4 (&v)[R][V], const Arguments& a, i64 first, Start start) {
  const int lane = threadIdx.x % LANES;
#pragma unroll
  for (int r = 0; r < R; ++r) {
    bool live = first + r < a.rows;
    Window w = window(start(live ? first + r : 0), a.n);
#pragma unroll
    for (int k = 0; k < V; ++k) v[r][k] = load_or_nothing(w, lane + k * LANES, live ? w.vectors : 0);
  }
}

// ---- kernels that need the maximum first ------------------------------------------------------------------
template <int V>
__device__ __forceinline__ C maximum_of(const uint4 (&v)[V]) {
  C m = element(v[0], 0);
#pragma unroll
  for (int i = 1; i < V * E; ++i) m = maximum_or_nan(m, element(v[i / E], i % E));
  return m;
}

// stage() fills tables in shared memory while the loads are under way; finish(row, live, lane, v, maximum) is
// called by every thread, for rows that do not exist too: it may shuffle.
template <int LANES, int V, class Stage, class Finish>
__device__ __forceinline__ void short_rows_in_registers(const Args& a, Stage stage, Finish finish) {
  let_next_kernel_start();
  int lane = threadIdx.x % LANES;
  i64 row = (i64)blockIdx.x * (SHORT_THREADS / LANES) + threadIdx.x / LANES;
  bool live = row < a.rows;
  Window w = window(a.in + row_offset(a, live ? row : 0), a.n);
  uint4 v[V];
#pragma unroll
  for (int k = 0; k < V; ++k) v[k] = load_or_nothing(w, lane + k * LANES, live ? w.vectors : 0);
  stage();
  __syncthreads();
#pragma unroll
  for (int k = 0; k < V; ++k) mask_edges(v[k], lane + k * LANES, w);
  finish(row, live, lane, v, largest_lane<LANES, true>(maximum_of(v)));
}
