-- For init.lua, Neovim 0.11 or later: types, faults and fixes of .shard files from `shardwright lsp`.
vim.filetype.add({ extension = { shard = "shard" } })
vim.lsp.config("shardwright", {
  cmd = { "shardwright", "lsp" },
  filetypes = { "shard" },
  init_options = { chip = "" }, -- such as "h100"; "" is the program's own
})
vim.lsp.enable("shardwright")
vim.lsp.inlay_hint.enable(true)
