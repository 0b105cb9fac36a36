-- For init.lua, Neovim 0.7 or later: types, faults and fixes of .shard files from `shardwright lsp`; hints from 0.10.
local server = { name = "shardwright", cmd = { "shardwright", "lsp" }, init_options = { chip = "" } } -- such as "h100"
vim.api.nvim_create_autocmd({ "BufRead", "BufNewFile" }, {
  pattern = "*.shard",
  callback = function(event)
    vim.bo.filetype, vim.bo.commentstring, vim.bo.expandtab, vim.bo.shiftwidth = "shard", "# %s", true, 2
    local client = (vim.lsp.start or vim.lsp.start_client)(server)
    if client and not vim.lsp.start then vim.lsp.buf_attach_client(event.buf, client) end
    if client and vim.lsp.inlay_hint then vim.lsp.inlay_hint.enable(true, { bufnr = event.buf }) end
  end,
})
