/* One lock for all tables: the calls are rare (torch caches memory, streams and events) and
 * short (nothing waits or copies under it), and one lock has no order to get wrong. */
#include "nullgpu.h"

#include <pthread.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void hold_over_fork(void)
{
    /* A child must not inherit the lock held by a thread that it does not have. */
    pthread_atfork(ng_lock, ng_unlock, ng_unlock);
}

void ng_lock(void)
{
    pthread_once(&once, hold_over_fork);
    pthread_mutex_lock(&lock);
}

void ng_unlock(void)
{
    pthread_mutex_unlock(&lock);
}
