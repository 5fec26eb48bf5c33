// The bulk copy engine (compute capability 9.0): global to shared memory with no register and no thread waiting.
//
// One thread asks for some kilobytes and names a barrier in shared memory, on which every reader waits.
// Addresses and sizes are multiples of 16 bytes. Few large requests pay: with 96 of 2 KB under way a
// multiprocessor read at little more than half the memory's speed, with 48 of 4 KB at nearly all of it.
#if __CUDA_ARCH__ >= 900
__device__ __forceinline__ u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }

__device__ __forceinline__ void barrier_init(u64* barrier) {  // one arrival a phase: the thread that asks
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(shared_address(barrier)) : "memory");
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void bulk_load(void* to, const void* from, u32 bytes, u64* barrier) {
  u32 b = shared_address(barrier);
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(b), "r"(bytes) : "memory");
  if (bytes)
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 :: "r"(shared_address(to)), "l"(from), "r"(bytes), "r"(b) : "memory");
}

__device__ __forceinline__ void barrier_wait(u64* barrier, u32 parity) {
  u32 b = shared_address(barrier), done;
  do {
    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                 : "=r"(done) : "r"(b), "r"(parity) : "memory");
  } while (!done);
}
#endif
