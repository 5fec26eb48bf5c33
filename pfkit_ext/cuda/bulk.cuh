// The bulk copy engine (compute capability 9.0): global to shared memory with no register and no thread waiting.
//
// One thread asks for some kilobytes and names a barrier in shared memory, on which every reader waits.
// Addresses and sizes are multiples of 16 bytes. Few large requests pay: with 96 of 2 KB under way a
// multiprocessor read at little more than half the memory's speed, with 48 of 4 KB at nearly all of it.
#include "barrier.cuh"

#if __CUDA_ARCH__ >= 900
__device__ __forceinline__ void bulk_load(void* to, const void* from, u32 bytes, u32 barrier) {
  barrier_expect(barrier, bytes);
  if (bytes)
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 :: "r"(shared_address(to)), "l"(from), "r"(bytes), "r"(barrier) : "memory");
}
#endif
