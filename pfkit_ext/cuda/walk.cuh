// Long walks over the terms of a row: the online softmax normaliser with few rescalings and a compensated sum,
// so that the error does not grow with the length of the walk.
//
// The reference moves only where a batch exceeds it by SLACK, so terms are up to exp(SLACK). Whatever has been
// through j rescalings is smaller than the final sum by exp(-(j - 1) SLACK) a term: on average over the mass no
// term meets more than 3 + ln n / SLACK of them, however slowly the maximum climbs. Batches are added without
// loss (the rounding of each addition is kept beside the sum).

constexpr C SLACK = 4;

struct Walk { C reference, s, lost, largest; };

__device__ __forceinline__ Walk start_of_walk() { return Walk{-LARGEST, 0, 0, -LARGEST}; }

template <int COUNT, class Term>
__device__ __forceinline__ void absorb(Walk& a, C largest, Term term) {
  a.largest = fmax(a.largest, largest);
  if (largest > a.reference + SLACK) {
    C m = fmin(largest, LARGEST), factor = expo(a.reference - m);
    a.s *= factor;
    a.lost *= factor;
    a.reference = m;
  }
  constexpr int LANES = COUNT < 4 ? COUNT : 4;  // independent chains of additions
  C s[LANES];
#pragma unroll
  for (int i = 0; i < LANES; ++i) s[i] = expo(term(i) - a.reference);
#pragma unroll
  for (int i = LANES; i < COUNT; ++i) s[i % LANES] += expo(term(i) - a.reference);
#pragma unroll
  for (int i = 1; i < LANES; ++i) s[0] += s[i];
  add_exactly(a.s, a.lost, s[0]);
}

template <int V>
__device__ __forceinline__ void absorb_vectors(Walk& a, const uint4 (&v)[V]) {
  absorb<V * E>(a, largest_of(v), [&](int i) { return element(v[i / E], i % E); });
}

// The state at the largest term. An infinite or NaN sum has no meaningful remainder.
__device__ __forceinline__ State end_of_walk(const Walk& a) {
  C m = fmin(a.largest, LARGEST);
  return State{m, (a.s - a.s == 0 ? a.s + a.lost : a.s) * expo(a.reference - m)};
}
