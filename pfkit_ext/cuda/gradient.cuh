// The gradient of a log-sum-exp: grad times the weight of every term; rows contiguous in and out.
//
// `Weight` is made of (maximum held within the finite range, total, grad) and maps a term to its gradient. A
// row without mass (maximum -inf) has gradient 0. Under +inf the gradient is shared evenly by the +inf terms.
template <int THREADS, int V, class Weight>
__device__ __forceinline__ void gradient_rows(const Args& a) {
  __shared__ u32 infinite[THREADS / 32];
  i64 blocks = (a.n + E + THREADS * V * E - 1) / (THREADS * V * E);
  i64 row = blockIdx.x / blocks, part = blockIdx.x % blocks;
  const Element* in = a.in + row_offset(a, row);
  C m = ((const C*)a.maximum)[row];
  double total = ((const double*)a.total)[row], grad = ((const double*)a.grad)[row];
  const C infinity = INFINITE;
  bool top = m == infinity;
  if (top) {  // rare: count the +inf terms of the whole row
    u32 count = 0;
    for (i64 at = threadIdx.x; at < a.n; at += THREADS) count += to_compute(in[at]) == infinity;
#pragma unroll
    for (int d = 16; d; d /= 2) count += __shfl_xor_sync(0xffffffffu, count, d);
    if (threadIdx.x % 32 == 0) infinite[threadIdx.x / 32] = count;
    __syncthreads();
    count = 0;
    for (int i = 0; i < THREADS / 32; ++i) count += infinite[i];
    grad = (double)((C)grad * ((C)1 / (C)count));
  }
  if (m != m) grad = (double)m;
  if (m == -infinity) grad = 0, total = 1;
  Weight weight(fmin(fmax(m, -LARGEST), LARGEST), total, grad);
  auto gradient = [&](C x) { return top ? x == infinity ? (C)grad : (C)0 : weight(x); };
  Window w = window(in, a.n);
  Element* out = a.grad_in + row * a.n;
  bool aligned = ((u64)out & 15u) == 0 && w.skip == 0;
  i64 at = part * THREADS * V + threadIdx.x;
  uint4 v[V];
#pragma unroll
  for (int k = 0; k < V; ++k) v[k] = load_or_nothing(w, at + k * THREADS, w.vectors);
#pragma unroll
  for (int k = 0; k < V; ++k) {
    i64 index = at + k * THREADS;
    if (index >= w.vectors) continue;
    if (aligned && (index < w.vectors - 1 || w.last == E)) {
      uint4 g;
#pragma unroll
      for (int j = 0; j < E; ++j) set_element(g, j, from_compute(gradient(element(v[k], j))));
      ((uint4*)out)[index] = g;
    } else {
#pragma unroll
      for (int j = 0; j < E; ++j) {
        i64 term = index * E + j - w.skip;
        if (term >= 0 && term < a.n) out[term] = from_compute(gradient(element(v[k], j)));
      }
    }
  }
}
