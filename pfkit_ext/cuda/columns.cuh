// Any strides: COLUMNS results beside each other a block, the terms of each over the other threads, its lines.
constexpr int COLUMN_THREADS = 256;

struct Column {
  const Element* in;
  i64 row, begin, end;  // the result, and the terms of this part of it
  int line;
  bool live;
};

template <int COLUMNS>
__device__ __forceinline__ Column column_of(const Args& a, i64 part, i64 parts) {
  Column c;
  c.row = (i64)blockIdx.x * COLUMNS + threadIdx.x % COLUMNS;
  c.line = threadIdx.x / COLUMNS;
  c.live = c.row < a.rows;
  c.in = a.in + row_offset(a, c.live ? c.row : 0);
  Range terms = range_of(a.n, part, parts);
  c.begin = terms.begin;
  c.end = c.live ? terms.end : 0;
  return c;
}

// A batch of a thread: the terms at, at + LINES, ...; -inf beyond the last.
template <int LINES, int COUNT>
__device__ __forceinline__ void load_terms(C (&x)[COUNT], const Args& a, const Column& c, i64 at) {
#pragma unroll
  for (int k = 0; k < COUNT; ++k)
    x[k] = to_compute(at + k * LINES < c.end ? c.in[term_offset(a, at + k * LINES)] : MINUS_INFINITY);
}

// The lines of each column joined, in a fixed tree. In shared memory: place i is column i's.
template <int COLUMNS, class T, class Join>
__device__ __forceinline__ const T* join_lines(const Column& c, T x, Join join) {
  __shared__ T lines[COLUMN_THREADS];
  lines[threadIdx.x] = x;
  __syncthreads();
  for (int d = COLUMN_THREADS / COLUMNS / 2; d; d /= 2) {
    if (c.line < d) lines[threadIdx.x] = join(lines[threadIdx.x], lines[threadIdx.x + d * COLUMNS]);
    __syncthreads();
  }
  return lines;
}
