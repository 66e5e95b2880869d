/* Mapped files that survive being cut by another program.

   A page of a mapping that its file no longer has raises SIGBUS, which ends the process. Here it is replaced, with
   all pages behind it, by pages of zeros, and the mapping is marked. A SIGBUS anywhere else goes to the handler that
   stood before. systemd's journal does the same.

   Mappings are made, ended and read with the GIL held. Descriptions are used again and never freed, so that the
   handler may walk them at any moment. */

#ifndef OTTLA_MAPPED_FILES_H
#define OTTLA_MAPPED_FILES_H

#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

typedef struct ottla_mapping {
    struct ottla_mapping *volatile next;
    unsigned char *volatile address;
    volatile size_t size;               /* 0: free to be used again */
    volatile int protection;
    volatile int is_lost;
} ottla_mapping;

static ottla_mapping *volatile ottla_mappings;
static ottla_mapping *ottla_free_mapping; /* the next one is in its `address` */
static volatile uint64_t ottla_losses;
static struct sigaction ottla_bus_error_before;
static int ottla_bus_errors_handled;

static void ottla_on_bus_error(int number, siginfo_t *info, void *context) {
    uintptr_t at = (uintptr_t) info->si_addr, page_size = (uintptr_t) sysconf(_SC_PAGESIZE);
    int before = errno;
    (void) context;
    for (ottla_mapping *one = ottla_mappings; info->si_code > 0 && one; one = one->next) {
        uintptr_t start = (uintptr_t) one->address, from = at & ~(page_size - 1);
        if (!one->size || at < start || at - start >= one->size)
            continue;
        size_t length = start + one->size - from;
        if (mmap((void *) from, length, one->protection, MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED)
            break;
        one->is_lost = 1;
        ottla_losses++;
        errno = before;
        return;
    }
    /* Not ours: the fault comes again, to the handler before this one. */
    sigaction(SIGBUS, &ottla_bus_error_before, NULL);
    if (info->si_code <= 0)
        raise(number);
    errno = before;
}

static int ottla_handle_bus_errors(void) {
    struct sigaction action;
    if (ottla_bus_errors_handled)
        return 0;
    memset(&action, 0, sizeof action);
    action.sa_sigaction = ottla_on_bus_error;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigemptyset(&action.sa_mask);
    if (sigaction(SIGBUS, &action, &ottla_bus_error_before) < 0)
        return -1;
    ottla_bus_errors_handled = 1;
    return 0;
}

/* Map the first bytes of a file; the descriptor may be closed. NULL with errno on failure. */
static ottla_mapping *ottla_map(int descriptor, size_t size, int is_writable) {
    ottla_mapping *one = ottla_free_mapping;
    int protection = is_writable ? PROT_READ | PROT_WRITE : PROT_READ;
    void *address;
    if (ottla_handle_bus_errors() < 0)
        return NULL;
    address = mmap(NULL, size, protection, MAP_SHARED, descriptor, 0);
    if (address == MAP_FAILED)
        return NULL;
    /* A search touches a few pages, and the first write one of a hole: nothing is to be read ahead. */
    (void) madvise(address, size, MADV_RANDOM);
    if (one) {
        ottla_free_mapping = (ottla_mapping *) one->address;
    } else {
        one = calloc(1, sizeof *one);
        if (!one) {
            munmap(address, size);
            errno = ENOMEM;
            return NULL;
        }
        one->next = ottla_mappings;
        ottla_mappings = one;
    }
    one->address = address;
    one->protection = protection;
    one->is_lost = 0;
    one->size = size;
    return one;
}

static void ottla_unmap(ottla_mapping *one) {
    size_t size = one->size;
    one->size = 0;
    munmap(one->address, size);
    one->address = (unsigned char *) ottla_free_mapping;
    ottla_free_mapping = one;
}

#endif
