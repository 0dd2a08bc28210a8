for(const box of document.querySelectorAll('.filter')){
 const table=document.getElementById(box.dataset.table);
 box.addEventListener('click',e=>{const b=e.target.closest('button');if(!b)return;
  for(const x of box.children)x.setAttribute('aria-pressed',x===b);
  for(const r of table.tBodies[0].rows)r.hidden=b.dataset.v&&r.dataset.v!==b.dataset.v;});}
