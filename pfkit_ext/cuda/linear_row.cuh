// What a row of logits brings to their gradient, whatever kernel made them.
struct RowTerms {
  float m, weight;  // weight: of exp(x - m)
  float outer;      // gradient of the row's loss, NaN if its target is no column
  i64 target;
  bool live;        // the target is not the ignored one

  template <class Arguments>
  __device__ __forceinline__ RowTerms(const Arguments& a, i64 row, bool there = true) {
    m = a.maximum[row];
    float s = a.total[row];
    target = a.targets[row];
    live = there && target != a.ignored;
    bool known = target >= 0 && target < a.vocabulary;
    outer = !live ? 0.0f : known ? a.outer[row] : __int_as_float(0x7fc00000);
    weight = live ? outer / s : 0.0f;
    if (a.z != 0 && live) weight *= 1.0f + 2.0f * (float)a.z * (m + logf(s));
  }
};
