// SPDX-License-Identifier: Apache-2.0
/*
 * elf: the kind of a program, and whether a preloaded library can work in it.  The file is
 * untrusted: every offset in it is checked before it is followed.
 */
#include "command/command.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/xattr.h>
#include <unistd.h>

#if defined(__x86_64__)
#define OUR_MACHINE EM_X86_64
#elif defined(__aarch64__)
#define OUR_MACHINE EM_AARCH64
#endif

struct image {
	const unsigned char *bytes;
	size_t size;
	const Elf64_Ehdr *header;
	const Elf64_Phdr *segments;
};

/* `length` bytes at `offset`, or NULL when they reach beyond the file. */
static const void *at(const struct image *image, uint64_t offset, uint64_t length)
{
	if (offset > image->size || length > image->size - offset)
		return NULL;
	return image->bytes + offset;
}

/* A NUL-terminated text at `offset` within `length` bytes, or NULL. */
static const char *text_at(const struct image *image, uint64_t offset, uint64_t length)
{
	const char *text = at(image, offset, length);

	return text != NULL && length > 0 && memchr(text, '\0', length) != NULL ? text : NULL;
}

/* File offset of a virtual address, or UINT64_MAX. */
static uint64_t offset_of(const struct image *image, uint64_t address)
{
	for (unsigned i = 0; i < image->header->e_phnum; i++) {
		const Elf64_Phdr *s = &image->segments[i];
		if (s->p_type == PT_LOAD && address >= s->p_vaddr && address - s->p_vaddr < s->p_filesz)
			return s->p_offset + (address - s->p_vaddr);
	}
	return UINT64_MAX;
}

/* The dynamic section: does the program ask for the C library of musl? */
static void read_needed(const struct image *image, const Elf64_Phdr *segment, struct program *out)
{
	size_t count = segment->p_filesz / sizeof(Elf64_Dyn);
	const Elf64_Dyn *entries = at(image, segment->p_offset, segment->p_filesz);
	uint64_t strings = UINT64_MAX;
	uint64_t size = 0;

	if (entries == NULL || segment->p_offset % _Alignof(Elf64_Dyn) != 0)
		return;
	for (size_t i = 0; i < count && entries[i].d_tag != DT_NULL; i++) {
		if (entries[i].d_tag == DT_STRTAB)
			strings = offset_of(image, entries[i].d_un.d_ptr);
		else if (entries[i].d_tag == DT_STRSZ)
			size = entries[i].d_un.d_val;
	}
	if (at(image, strings, size) == NULL)
		return;
	for (size_t i = 0; i < count && entries[i].d_tag != DT_NULL; i++) {
		uint64_t offset = entries[i].d_un.d_val;
		if (entries[i].d_tag != DT_NEEDED || offset >= size)
			continue;
		const char *name = text_at(image, strings + offset, size - offset);
		out->musl |= name != NULL && strncmp(name, "libc.musl", 9) == 0;
	}
}

static bool has_section(const struct image *image, const char *wanted)
{
	const Elf64_Ehdr *h = image->header;
	const Elf64_Shdr *sections = at(image, h->e_shoff, (uint64_t)h->e_shnum * sizeof(*sections));

	if (h->e_shoff == 0 || sections == NULL || h->e_shentsize != sizeof(*sections) ||
	    h->e_shoff % _Alignof(Elf64_Shdr) != 0 || h->e_shstrndx >= h->e_shnum)
		return false;
	const Elf64_Shdr *names = &sections[h->e_shstrndx];
	for (unsigned i = 0; i < h->e_shnum; i++) {
		if (sections[i].sh_name >= names->sh_size)
			continue;
		const char *name = text_at(image, names->sh_offset + sections[i].sh_name,
		                           names->sh_size - sections[i].sh_name);
		if (name != NULL && strcmp(name, wanted) == 0)
			return true;
	}
	return false;
}

static enum program_kind read_elf(struct image *image, struct program *out)
{
	const Elf64_Ehdr *h = at(image, 0, sizeof(*h));
	enum program_kind kind = PROGRAM_STATIC;

	if (image->size < EI_NIDENT)
		return PROGRAM_BROKEN;
	if (image->bytes[EI_CLASS] != ELFCLASS64 || image->bytes[EI_DATA] != ELFDATA2LSB)
		return PROGRAM_FOREIGN;
	if (h == NULL)
		return PROGRAM_BROKEN;
	if (h->e_machine != OUR_MACHINE)
		return PROGRAM_FOREIGN;
	image->header = h;
	image->segments = at(image, h->e_phoff, (uint64_t)h->e_phnum * sizeof(Elf64_Phdr));
	if (image->segments == NULL || h->e_phentsize != sizeof(Elf64_Phdr) || h->e_phnum == 0 ||
	    h->e_phoff % _Alignof(Elf64_Phdr) != 0 || (h->e_type != ET_EXEC && h->e_type != ET_DYN))
		return PROGRAM_BROKEN;
	for (unsigned i = 0; i < h->e_phnum; i++) {
		const Elf64_Phdr *s = &image->segments[i];
		if (s->p_type == PT_INTERP) {
			const char *loader = text_at(image, s->p_offset, s->p_filesz);
			if (loader == NULL)
				return PROGRAM_BROKEN;
			kind = PROGRAM_DYNAMIC;
			snprintf(out->interpreter, sizeof(out->interpreter), "%s", loader);
			out->musl = out->musl || strstr(loader, "ld-musl") != NULL;
		} else if (s->p_type == PT_DYNAMIC) {
			read_needed(image, s, out);
			out->library = h->e_type == ET_DYN;
		}
	}
	out->library = out->library && kind == PROGRAM_STATIC;
	out->go = has_section(image, ".go.buildinfo");
	return kind;
}

/* "#!INTERPRETER [ARGUMENT]" as the kernel reads it. */
static enum program_kind read_script(const struct image *image, struct program *out)
{
	const char *line = (const char *)image->bytes + 2;
	size_t left = image->size - 2 < 255 ? image->size - 2 : 255;
	const char *newline = memchr(line, '\n', left);
	char text[256];

	if (newline != NULL)
		left = (size_t)(newline - line);
	memcpy(text, line, left);
	text[left] = '\0';
	char *start = text + strspn(text, " \t");
	size_t length = strcspn(start, " \t\r");
	char *rest = start + length + strspn(start + length, " \t\r");
	rest[strcspn(rest, "\r")] = '\0';
	snprintf(out->argument, sizeof(out->argument), "%s", rest);
	start[length] = '\0';
	snprintf(out->interpreter, sizeof(out->interpreter), "%s", start);
	return length > 0 ? PROGRAM_SCRIPT : PROGRAM_OTHER;
}

/* The loader ignores LD_PRELOAD if the kernel raises privileges, unless the caller has them anyway. */
static void read_privileges(int fd, const struct stat *st, struct program *out)
{
	bool setuid = (st->st_mode & S_ISUID) != 0;
	bool setgid = (st->st_mode & S_ISGID) != 0 && (st->st_mode & S_IXGRP) != 0;
	bool capable = fgetxattr(fd, "security.capability", NULL, 0) > 0;
	struct statvfs fs;

	if (fstatvfs(fd, &fs) == 0 && (fs.f_flag & ST_NOSUID) != 0)
		return;
	out->raised = setuid || setgid || capable;
	out->privileged = (setuid && st->st_uid != getuid()) || (setgid && st->st_gid != getgid()) ||
	                  (capable && getuid() != 0);
}

int program_inspect(const char *path, struct program *out)
{
	struct image image = {0};
	struct stat st;
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);

	memset(out, 0, sizeof(*out));
	out->kind = PROGRAM_OTHER;
	if (fd < 0)
		return -errno;
	if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode) || st.st_size < 4) {
		close(fd);
		return 0;
	}
	image.size = (size_t)st.st_size;
	void *map = mmap(NULL, image.size, PROT_READ, MAP_PRIVATE, fd, 0);
	read_privileges(fd, &st, out);
	close(fd);
	if (map == MAP_FAILED)
		return -errno;
	image.bytes = map;
	if (memcmp(image.bytes, ELFMAG, SELFMAG) == 0)
		out->kind = read_elf(&image, out);
	else if (memcmp(image.bytes, "#!", 2) == 0)
		out->kind = read_script(&image, out);
	munmap(map, image.size);
	return 0;
}

const char *program_obstacle(const struct program *p)
{
	if (p->kind == PROGRAM_BROKEN)
		return "a damaged ELF file";
	if (p->kind == PROGRAM_FOREIGN)
		return "built for another machine or word size than libfastwrite.so, which its loader leaves "
		       "out; use a build for this machine";
	if (p->go)
		return "a Go program: it makes system calls itself instead of calling the C library, so that "
		       "its writes are not seen";
	if (p->kind == PROGRAM_STATIC)
		return "statically linked: it loads no library, so that nothing can be preloaded; use a "
		       "dynamically linked build";
	if (p->privileged)
		return "setuid, setgid or with file capabilities: the loader ignores LD_PRELOAD for it; run "
		       "it without the raised privileges, or as the user it switches to";
	if (p->musl)
		return "linked with musl instead of glibc: libfastwrite.so cannot be loaded into it; use a "
		       "glibc build";
	return NULL;
}

bool program_lacks_interpreter(const char *path, char *out)
{
	char file[PATH_MAX];
	struct program p;

	snprintf(file, sizeof(file), "%s", path);
	for (int depth = 0; depth < 5; depth++) {
		if (program_inspect(file, &p) != 0 || (p.kind != PROGRAM_SCRIPT && p.kind != PROGRAM_DYNAMIC))
			return false;
		if (access(p.interpreter, F_OK) != 0 && (errno == ENOENT || errno == ENOTDIR)) {
			strcpy(out, p.interpreter);
			return true;
		}
		if (p.kind == PROGRAM_DYNAMIC)
			return false;
		strcpy(file, p.interpreter);
	}
	return false;
}

/* "env [-i] [NAME=VALUE...] PROGRAM": the program's name, or NULL when it cannot be told. */
static char *program_of_env(char *argument)
{
	char *rest;

	for (char *word = strtok_r(argument, " \t", &rest); word != NULL;
	     word = strtok_r(NULL, " \t", &rest)) {
		if (word[0] != '-' && strchr(word, '=') == NULL)
			return word;
	}
	return NULL;
}

int program_resolve(char *path, struct program *out)
{
	char found[PATH_MAX];

	/* The kernel follows at most 4 interpreters. */
	for (int depth = 0; depth < 5; depth++) {
		int rc = program_inspect(path, out);
		if (rc != 0 || out->kind != PROGRAM_SCRIPT)
			return rc;
		const char *base = strrchr(out->interpreter, '/');
		const char *next = out->interpreter;
		if (base != NULL && strcmp(base, "/env") == 0 && out->argument[0] != '\0') {
			next = program_of_env(out->argument);
			if (next == NULL)
				return 0;
		}
		rc = cli_find_program(next, found);
		if (rc != 0)
			return rc;
		strcpy(path, found);
	}
	return -ELOOP;
}
