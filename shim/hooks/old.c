// SPDX-License-Identifier: Apache-2.0
/* old: names that programs built before 2000 have for the functions that make and close streams. */
#include "hooks/hook.h"

#include <stdio.h>

EXPORT FILE *_IO_fopen(const char *path, const char *mode);
EXPORT FILE *_IO_fdopen(int fd, const char *mode);
EXPORT int _IO_fclose(FILE *stream);
EXPORT FILE *_IO_popen(const char *command, const char *mode);

EXPORT FILE *_IO_fopen(const char *path, const char *mode) { return fopen(path, mode); }
EXPORT FILE *_IO_fdopen(int fd, const char *mode) { return fdopen(fd, mode); }
EXPORT int _IO_fclose(FILE *stream) { return fclose(stream); }
EXPORT FILE *_IO_popen(const char *command, const char *mode) { return popen(command, mode); }
