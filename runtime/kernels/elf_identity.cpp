// SPDX-License-Identifier: Apache-2.0
#include <elf.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <fstream>

#include "cache/digest.h"
#include "runtime/kernels/nvrtc_search.h"

namespace flashjit::runtime {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kIdBytes = 8;
constexpr std::size_t kEnds = 64 * 1024;        // hashed at both ends of a library without a build id
constexpr std::size_t kMaxNoteBytes = 1 << 20;  // a sane limit on what a damaged header can ask for
#ifdef __aarch64__
constexpr Elf64_Half kMachine = EM_AARCH64;
#else
constexpr Elf64_Half kMachine = EM_X86_64;
#endif

template <typename T>
std::optional<T> read_struct(std::string_view bytes, std::size_t offset) {
  if (bytes.size() < sizeof(T) || offset > bytes.size() - sizeof(T)) return std::nullopt;
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return value;
}

constexpr std::size_t padded(std::size_t size) { return (size + 3) / 4 * 4; }

// The first bytes of NT_GNU_BUILD_ID in a note segment, as hex.
std::string build_id(std::string_view notes) {
  std::size_t offset = 0;
  while (const auto note = read_struct<Elf64_Nhdr>(notes, offset)) {
    const std::size_t name = offset + sizeof(Elf64_Nhdr);
    const std::size_t description = name + padded(note->n_namesz);
    const std::size_t next = description + padded(note->n_descsz);
    if (next > notes.size()) break;
    if (note->n_type == NT_GNU_BUILD_ID && note->n_descsz >= kIdBytes &&
        notes.substr(name, 4) == std::string_view("GNU\0", 4)) {
      std::string hex;
      for (std::size_t i = 0; i < kIdBytes; ++i) {
        hex += fmt::format("{:02x}", static_cast<unsigned char>(notes[description + i]));
      }
      return hex;
    }
    offset = next;
  }
  return {};
}

class ElfFile {
 public:
  explicit ElfFile(const fs::path& path) : file_(path, std::ios::binary), size_(fs::file_size(path)) {}

  // Why it cannot be opened as a library; empty when nothing is known against it.
  std::string problem() {
    const auto header = read_struct<Elf64_Ehdr>(read_at(0, sizeof(Elf64_Ehdr)), 0);
    if (!header || std::memcmp(header->e_ident, ELFMAG, SELFMAG) != 0) return "is no ELF file";
    header_ = *header;
    if (header_.e_ident[EI_CLASS] != ELFCLASS64 || header_.e_ident[EI_DATA] != ELFDATA2LSB ||
        header_.e_machine != kMachine) {
      return "is for another kind of machine";
    }
    if (header_.e_type != ET_DYN || header_.e_phnum == 0 || header_.e_phentsize != sizeof(Elf64_Phdr))
      return "is no shared library";
    const std::uint64_t end = promised_end();
    return end <= size_ ? "" : fmt::format("is cut: it has {} bytes and must have {}", size_, end);
  }

  std::string identity() {
    for (const Elf64_Phdr& segment : segments_) {
      if (segment.p_type != PT_NOTE || segment.p_filesz > kMaxNoteBytes) continue;
      const std::string id = build_id(read_at(segment.p_offset, segment.p_filesz));
      if (!id.empty()) return "nvrtc-" + id;
    }
    const std::size_t part = std::min<std::uint64_t>(size_, kEnds);
    const cache::Digest digest = cache::Hasher()
                                     .add("size", std::to_string(size_))
                                     .add("head", read_at(0, part))
                                     .add("tail", read_at(size_ - part, part))
                                     .finish();
    return "nvrtc-" + digest.hex().substr(0, 2 * kIdBytes);
  }

 private:
  // Empty unless all the bytes could be read.
  std::string read_at(std::uint64_t offset, std::uint64_t size) {
    if (offset > size_ || size > size_ - offset) return {};
    std::string bytes(size, '\0');
    file_.clear();
    file_.seekg(static_cast<std::streamoff>(offset));
    file_.read(bytes.data(), static_cast<std::streamsize>(size));
    return static_cast<std::uint64_t>(file_.gcount()) == size ? bytes : std::string();
  }

  template <typename T>
  std::vector<T> read_table(std::uint64_t offset, std::size_t count) {
    const std::string bytes = read_at(offset, count * sizeof(T));
    std::vector<T> table(bytes.size() / sizeof(T));
    if (!table.empty()) std::memcpy(table.data(), bytes.data(), table.size() * sizeof(T));
    return table;
  }

  // Where the last of what the headers name ends: their tables, the segments, the sections.
  std::uint64_t promised_end() {
    std::uint64_t end = 0;
    const auto add = [&end](std::uint64_t offset, std::uint64_t size) {
      std::uint64_t last = 0;
      end = std::max(end, __builtin_add_overflow(offset, size, &last) ? UINT64_MAX : last);
    };
    add(header_.e_phoff, header_.e_phnum * sizeof(Elf64_Phdr));
    segments_ = read_table<Elf64_Phdr>(header_.e_phoff, header_.e_phnum);
    for (const Elf64_Phdr& segment : segments_) add(segment.p_offset, segment.p_filesz);
    if (header_.e_shoff == 0 || header_.e_shentsize != sizeof(Elf64_Shdr)) return end;  // stripped of them
    add(header_.e_shoff, header_.e_shnum * sizeof(Elf64_Shdr));
    for (const Elf64_Shdr& section : read_table<Elf64_Shdr>(header_.e_shoff, header_.e_shnum)) {
      if (section.sh_type != SHT_NOBITS) add(section.sh_offset, section.sh_size);
    }
    return end;
  }

  std::ifstream file_;
  const std::uint64_t size_;
  Elf64_Ehdr header_{};
  std::vector<Elf64_Phdr> segments_;
};

}  // namespace

LibraryFile examine_library(const fs::path& path) try {
  if (!fs::is_regular_file(path)) return {"", "is no regular file"};
  ElfFile file(path);
  std::string problem = file.problem();
  if (!problem.empty()) return {"", std::move(problem)};
  return {file.identity(), ""};
} catch (const std::exception& error) {
  return {"", fmt::format("cannot be read: {}", error.what())};
}

}  // namespace flashjit::runtime
