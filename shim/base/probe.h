// SPDX-License-Identifier: Apache-2.0
/*
 * probe: static tracepoints (USDT) of the provider "fastwrite", for bpftrace, perf and systemtap.
 *
 * PROBE(name, ...) is one nop.  A note in the library's file says where it stands, and in which registers or
 * memory its arguments are.  A tracer puts a breakpoint there.  So an argument must be at hand: a local
 * variable that is alive, a field of a structure whose address is, or a constant.  Each argument has the same
 * type wherever a probe of that name stands.
 *
 * The header is that of systemtap (Debian: systemtap-sdt-dev).  A build without it, or with
 * -DFASTWRITE_NO_PROBES, has no probes.
 *
 *   stage(dev, ino, bytes)             a write is accepted into the arena; rarely twice for one write
 *   flush_begin(dev, ino)              staged bytes are about to be written to the file
 *   flush(dev, ino, bytes, result)     the same thread has done so; 0 or -errno.  A try that is
 *                                      made again begins once more instead
 *   sync(dev, ino, result)             the program's sync; 0, -errno, or INT_MIN: the descriptor was replaced
 *                                      meanwhile, and the sync begins anew
 *   attach(dev, ino), detach(dev, ino)
 *   bypass(dev, ino, reason)           enum bypass_reason
 *   epoch(number, log bytes, ns)       an epoch has come to the files, so long after its log write began
 *
 * dev is that of struct file: major << 32 | minor.
 */
#ifndef FASTWRITE_BASE_PROBE_H
#define FASTWRITE_BASE_PROBE_H

/* dev and ino of a struct file (which may be that of another file by now, and stays mapped), as the memory
 * that they are: an atomic load would be an instruction. */
#define PROBE_FILE(f) *(const uint64_t *)&(f)->dev, *(const uint64_t *)&(f)->ino

/* (the thread sanitizer would take PROBE_FILE for a race) */
#if !defined(FASTWRITE_NO_PROBES) && !defined(__SANITIZE_THREAD__) && __has_include(<sys/sdt.h>)
#define SDT_USE_VARIADIC
#include <sys/sdt.h>
#define PROBE(name, ...) STAP_PROBEV(fastwrite, name, __VA_ARGS__)
#else
#define PROBE(name, ...) ((void)0)
#endif

#endif
