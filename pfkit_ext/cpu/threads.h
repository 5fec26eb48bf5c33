/* The least of threads: start, join, and a barrier that spins before it yields. POSIX or Windows.
 *
 * Steps of a filter are tens of microseconds to a millisecond; a barrier through the kernel would cost as much. */
#ifndef PF_THREADS_H
#define PF_THREADS_H

#include <stdint.h>

#include <time.h>

#if defined(_WIN32)
#include <windows.h>
typedef HANDLE pf_thread;
typedef LONG volatile pf_atomic;
#define PF_THREAD_RESULT DWORD WINAPI
#define PF_THREAD_RETURN return 0
static inline int pf_thread_start(pf_thread *t, DWORD(WINAPI *f)(void *), void *arg)
{
    *t = CreateThread(NULL, 0, f, arg, 0, NULL);
    return *t ? 0 : -1;
}
static inline void pf_thread_join(pf_thread t)
{
    WaitForSingleObject(t, INFINITE);
    CloseHandle(t);
}
static inline long pf_atomic_add(pf_atomic *a, long v) { return InterlockedExchangeAdd(a, v) + v; }
static inline long pf_atomic_read(pf_atomic *a) { return InterlockedCompareExchange(a, 0, 0); }
static inline void pf_thread_yield(void) { SwitchToThread(); }
#else
#include <pthread.h>
#include <sched.h>
typedef pthread_t pf_thread;
typedef long pf_atomic;
#define PF_THREAD_RESULT void *
#define PF_THREAD_RETURN return NULL
static inline int pf_thread_start(pf_thread *t, void *(*f)(void *), void *arg) { return pthread_create(t, NULL, f, arg); }
static inline void pf_thread_join(pf_thread t) { pthread_join(t, NULL); }
static inline long pf_atomic_add(pf_atomic *a, long v) { return __atomic_add_fetch(a, v, __ATOMIC_ACQ_REL); }
static inline long pf_atomic_read(pf_atomic *a) { return __atomic_load_n(a, __ATOMIC_ACQUIRE); }
static inline void pf_thread_yield(void) { sched_yield(); }
#endif

#if defined(__x86_64__) || defined(_M_X64)
#include <immintrin.h>
#define PF_PAUSE() _mm_pause()
#else
#define PF_PAUSE() ((void)0)
#endif

/* A clock, in nanoseconds; reading it takes some 30 of them. */
static inline uint64_t pf_nanoseconds(void)
{
    struct timespec t;
    timespec_get(&t, TIME_UTC);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* wait until *a reaches target (which it never passes by 2^30) */
static inline void pf_wait_for(pf_atomic *a, long target)
{
    for (int spins = 0; (int32_t)((uint32_t)pf_atomic_read(a) - (uint32_t)target) < 0; spins++) {
        if (spins < 4000) PF_PAUSE();
        else pf_thread_yield();
    }
}

#endif
